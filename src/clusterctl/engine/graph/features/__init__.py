"""Where the features of nodes are: in memory, on the disk, or split over the nodes of a run.

Start with `placement`, which chooses a class of `sources` or `split`; `visits` decides what they cache. `arrangement`
prepares files for the disk.
"""

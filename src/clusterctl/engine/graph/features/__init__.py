"""Where the features of nodes are: in memory, on the disk, or split over the nodes of a run.

Start with `placement`, which chooses a class of `sources` or `split`. `arrangement` prepares files for the disk.
"""

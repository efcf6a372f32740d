"""Tells others what happens to runs, as `[notify]` says: begin with `tell`.

The batch script and the writers of nodes start this package by its path, with the standard library alone (`__main__`);
`clusterctl notify` calls it on the login node.
"""

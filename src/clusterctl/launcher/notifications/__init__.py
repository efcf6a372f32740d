"""Sends notifications about runs, as configured in `[notify]`: start with `notifier`.

The batch script and the writers of nodes start this package by its path, with only the standard library (`__main__`);
`clusterctl notify` calls it on the login node.
"""

"""What the login node and the tasks share: the run directory, the processes on a node, the settings. Standard library
only."""

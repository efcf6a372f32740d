"""One command from a laptop to a GPU cluster: containerised multi-node graph-network training on Slurm."""

__version__ = "0.1.0"

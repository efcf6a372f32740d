"""The Slurm commands: one client with rate limits and a controlled environment; output is parsed at the edge."""

from clusterctl.launcher.slurm.client import Slurm
from clusterctl.launcher.slurm.nodes import Inventory, Node, Partition
from clusterctl.launcher.slurm.queue import JobState, QueuedJob, Snapshot

__all__ = ["Inventory", "JobState", "Node", "Partition", "QueuedJob", "Slurm", "Snapshot"]

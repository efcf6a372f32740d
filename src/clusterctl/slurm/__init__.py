"""The Slurm commands, asked politely: one client, a built environment, parsing at the edge."""

from clusterctl.slurm.client import Slurm
from clusterctl.slurm.nodes import Inventory, Node, Partition
from clusterctl.slurm.queue import JobState, QueuedJob, Snapshot

__all__ = ["Inventory", "JobState", "Node", "Partition", "QueuedJob", "Slurm", "Snapshot"]

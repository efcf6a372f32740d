"""The Slurm commands, asked politely: one client, a built environment, parsing at the edge."""

from clusterctl.slurm.client import Slurm, built_environment
from clusterctl.slurm.nodes import Inventory, Node, Partition
from clusterctl.slurm.queue import JobState, QueuedJob, Snapshot
from clusterctl.slurm.shared import Told

__all__ = ["Inventory", "JobState", "Node", "Partition", "QueuedJob", "Slurm", "Snapshot", "Told", "built_environment"]

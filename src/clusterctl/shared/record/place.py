"""A task's position in its run (rank, local rank, node), read from Slurm's or torchrun's variables."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterctl.shared.errors import TaskError

if TYPE_CHECKING:
    from collections.abc import Mapping


def node_name(environment: Mapping[str, str] = os.environ) -> str:
    """Slurm's name of this node, which may differ from its host name."""
    return environment.get("SLURMD_NODENAME") or socket.gethostname()


@dataclass(frozen=True)
class Place:
    rank: int = 0
    local_rank: int = 0
    node_rank: int = 0
    world_size: int = 1
    nodes: int = 1

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Place:
        """Read torchrun's variables if torchrun (or its agent on Slurm) set them, else Slurm's; default: a single task.

        torchrun comes first: inside an allocation Slurm's variables describe the agent, not its workers. Raises
        TaskError for a value that is not a number.
        """
        if "TORCHELASTIC_RUN_ID" in environment:
            names = ("RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE", "GROUP_WORLD_SIZE")
        elif "SLURM_PROCID" in environment:
            names = ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_NTASKS", "SLURM_STEP_NUM_NODES")
        else:
            return cls()
        numbers = []
        for name, default in zip(names, ("0", "0", "0", "1", "1"), strict=True):
            text = environment.get(name, default)
            if not text.isdigit():
                raise TaskError(f"{name} is not a number: {text!r}")
            numbers.append(int(text))
        return cls(*numbers)

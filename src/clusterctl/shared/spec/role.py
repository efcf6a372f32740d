"""A role: one of several programs that run side by side in one job."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from clusterctl.shared.spec.values import (
    AtLeast,
    Count,
    EnvName,
    Line,
    Matches,
    Natural,
    NotEmpty,
    OneOf,
    Seconds,
    Text,
    Unshown,
    Word,
)

RoleName = Annotated[str, Matches(r"[A-Za-z][A-Za-z0-9_-]{0,30}", "a short name of letters, digits, _ and -")]


@dataclass(frozen=True, kw_only=True)
class Role:
    """`[[role]]`: one program of a job with several, and where it runs; its `name` is set beside these keys."""

    program: Annotated[tuple[Text, ...], NotEmpty()]
    """Program and arguments, such as ["python", "serve.py", "--port", "{port}"]; {{ is a brace."""
    nodes: Count = 1
    """Number of nodes."""
    share: bool = False
    """Whether it runs on the nodes of the role before it that has its own, with CPUs and GPUs of its own there."""
    tasks_per_node: Count | None = None
    """Ranks on each node; by default one per GPU of the role, or one if it has none or torchrun starts them."""
    cpus_per_task: Count = 1
    """CPU cores for each rank."""
    gpus_per_node: Natural = 0
    """GPUs on each node, which its ranks share; other roles do not see them."""
    needs: tuple[RoleName, ...] = ()
    """Roles that must be ready before it starts."""
    ready: Line | None = None
    """How a rank shows that it is ready: "http://{host}:{port}/health", "tcp://{host}:{port}", "file:PATH" or
    "log:TEXT"; by default it is once started."""
    ready_within: Annotated[Seconds, AtLeast(1)] = 600
    """How long after its start all its ranks must be ready; otherwise the job ends."""
    ends: Annotated[str, OneOf(("role", "job"))] = "role"
    """What its end with exit code 0 ends: only the role, or the whole job, with the other roles."""
    restart: Annotated[str, OneOf(("job", "role", "never"))] = "job"
    """What is started again when one of its ranks is killed: all roles, or only this rank, also after a failure; or
    nothing."""
    grace: Seconds = 10
    """How long its program may take to exit after TERM before it is killed."""
    image: Word | None = None
    """Its image, instead of that of [container], whose other keys apply; "none": it runs on the host."""
    env: Annotated[dict[EnvName, Annotated[Text, Unshown()]], Unshown()] = field(default_factory=dict)
    """Environment variables of this role only; placeholders are filled in."""

"""Every error that a user can see, under one root.

ClusterctlError
├── UsageError          2    the command line is invalid
├── ConfigError         3    a job or cluster file, or an override, is wrong
├── SlurmError          4    Slurm cannot be reached, or rejected the request
├── HostError           4    the login node cannot be reached, or the connection was lost
├── NotFoundError       5    no such run, job file or cluster file
├── RunFailed           1    a run that was waited for did not finish (in `api.run`; contains the diagnosis)
├── ImageError          1    an image cannot be built or imported, or is damaged
├── TaskError           1    something that a task needs is missing or wrong
│   ├── ProgramEnded    1    the user's own program failed
│   └── RoleFailed      1    a role was not ready in time, or ended too early
└── WaitTimedOut      124    the timeout passed before the run ended; also a TimeoutError

An error has a `message` (what is wrong, and where) and a `hint` (what to type next). Errors are rendered only in `cli`;
nothing below it prints or exits. Python programs read them, too: they name arguments as "`hold=True`" and keys of the
job as "`resources.nodes = 2`", and `cli.options` shows the flags instead. Commands of the shell are named as typed.
"""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar


class Cause(StrEnum):
    """Why a run ended or is waiting: a task records it with its failure, and `clusterctl why` shows it.

    The last six are for runs that did not fail (unless the job treats idle GPUs as a failure).
    """

    USER = "user-error"
    HOST_MEMORY = "out-of-memory"
    GPU_MEMORY = "gpu-out-of-memory"
    TIME = "time-limit"
    PREEMPTED = "preempted"
    NODE = "node-failure"
    IMAGE = "image"
    DATA = "data"
    NETWORK = "network"
    HANG = "hang"
    DISK = "disk-full"
    CANCELLED = "cancelled"
    KILLED = "killed"
    LAUNCH = "launch"
    UNKNOWN = "unknown"
    FINISHED = "finished"
    PENDING = "pending"
    HEALTHY = "healthy"
    STRAGGLER = "straggler"
    NOT_LEARNING = "not-learning"
    IDLE_GPUS = "idle-gpus"


class ClusterctlError(Exception):
    """The root: `message` (what and where), `hint` (what to type next), `cause`, and the exit code of the process."""

    exit_code: ClassVar[int] = 1
    message: str
    hint: str
    cause: Cause = Cause.USER

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.note_hint()

    def note_hint(self) -> None:
        """A traceback in Python shows the hint below the message."""
        if self.hint:
            self.add_note(f"hint: {self.hint}")

    @property
    def text(self) -> str:
        """What a task writes to its log. The command line renders errors itself, and escapes them."""
        return f"error: {self.message}\nhint: {self.hint}" if self.hint else f"error: {self.message}"


class UsageError(ClusterctlError):
    """The request is invalid."""

    exit_code = 2


class ConfigError(ClusterctlError):
    """A job file, a cluster file or an override is wrong, or something that the run needs is missing."""

    exit_code = 3


class SlurmError(ClusterctlError):
    """Slurm cannot be reached, or rejected the request."""

    exit_code = 4


class HostError(ClusterctlError):
    """The login node of a remote cluster cannot be reached, or the connection to it was lost."""

    exit_code = 4


class NotFoundError(ClusterctlError):
    """There is no such run, job, cluster or image."""

    exit_code = 5


class ImageError(ClusterctlError):
    """An image cannot be built or imported, or is damaged."""


class TaskError(ClusterctlError):
    """Something that a task needs is missing or wrong."""

    def __init__(self, message: str, hint: str = "", cause: Cause = Cause.USER) -> None:
        super().__init__(message, hint)
        self.cause = cause


class ProgramEnded(TaskError):
    """The user's own program ended with `code`, or was killed by `signal`; its output has the details."""

    def __init__(self, message: str, code: int, signal: int | None = None) -> None:
        super().__init__(message, cause=Cause.USER if signal is None else Cause.KILLED)
        self.code = code
        self.signal = signal


class RoleFailed(TaskError):
    """A role of a job was not ready in time, or ended although others need it; nothing failed by itself."""


def reason(error: BaseException) -> str:
    """An error in one line; for an OSError, the file and the system's message."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


class WaitTimedOut(ClusterctlError, TimeoutError):
    """The timeout passed before the run ended; the run continues."""

    exit_code = 124

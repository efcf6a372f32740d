"""submitit's executor with our script: pickling, sbatch and reading its answer stay submitit's.

Written against submitit 1.5.4. The array path is not used: it builds a plain SlurmExecutor and drops this class.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from submitit.slurm.slurm import SlurmExecutor

if TYPE_CHECKING:
    from pathlib import Path


class Executor(SlurmExecutor):  # type: ignore[misc]  # submitit has no types here
    """Submits the text of `script` through `command` (sbatch and its flags)."""

    def __init__(self, folder: Path, script: str, command: list[str], tasks: int) -> None:
        super().__init__(folder)
        self._script = script
        self._command = command
        self._tasks = tasks

    def _make_submission_file_text(self, command: str, uid: str) -> str:  # noqa: ARG002 - submitit's signature
        return self._script

    def _make_submission_command(self, submission_file_path: Path) -> list[str]:
        return [*self._command, str(submission_file_path)]

    def _num_tasks(self) -> int:
        return self._tasks

    @classmethod
    def affinity(cls) -> int:
        return 2  # submitit would look for srun on PATH, where the emulator's is not

"""submitit's executor with our script and our call of sbatch: pickling and the names of its files stay submitit's.

Written against submitit 1.5.4. The array path is not used: it builds a plain SlurmExecutor and drops this class.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

from submitit.slurm.slurm import SlurmExecutor

from clusterctl.runs.files import write_text

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class Executor(SlurmExecutor):  # type: ignore[misc]  # submitit has no types here
    """Submits the text of `script` through `send`, which is handed the file and returns what sbatch printed.

    submitit's own `_submit_command` gives sbatch this process's environment and prints its complaints: a program with
    several threads can use neither.
    """

    def __init__(self, folder: Path, script: str, send: Callable[[Path], str], tasks: int) -> None:
        super().__init__(folder)
        self._script = script
        self._send = send
        self._tasks = tasks

    def _submit_command(self, command: str) -> Any:  # noqa: ARG002 - submitit's signature
        file = self.folder / f".submission_file_{uuid.uuid4().hex}.sh"
        write_text(file, self._script)
        job_id = self._get_job_id_from_submission_command(self._send(file))
        job = self.job_class(folder=self.folder, job_id=job_id, tasks=list(range(self._tasks)))
        job.paths.move_temporary_file(file, "submission_file", keep_as_symlink=True)
        return job

    @classmethod
    def affinity(cls) -> int:
        return 2  # submitit would look for srun on PATH, where the emulator's is not

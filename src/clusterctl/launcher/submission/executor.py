"""submitit's executor with our script and our call of sbatch; pickling and file names remain submitit's.

Written against submitit 1.5.4. Its array support is not used: it builds a plain SlurmExecutor instead of this class.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

from submitit.slurm.slurm import SlurmExecutor

from clusterctl.shared.record.files import write_text

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class Executor(SlurmExecutor):  # type: ignore[misc]  # submitit has no types here
    """Submits `script` through `send`, which gets the file and returns sbatch's output.

    submitit's own `_submit_command` passes this process's environment to sbatch and prints its errors: neither works in
    a program with several threads.
    """

    job_id = ""  # once Slurm has the job

    def __init__(self, folder: Path, script: str, send: Callable[[Path], str], tasks: int) -> None:
        super().__init__(folder)
        self._script = script
        self._send = send
        self._tasks = tasks

    def _submit_command(self, command: str) -> Any:  # noqa: ARG002 - submitit's signature
        file = self.folder / f".submission_file_{uuid.uuid4().hex}.sh"
        write_text(file, self._script)
        self.job_id = str(self._get_job_id_from_submission_command(self._send(file)))
        job = self.job_class(folder=self.folder, job_id=self.job_id, tasks=list(range(self._tasks)))
        job.paths.move_temporary_file(file, "submission_file", keep_as_symlink=True)
        return job

    @classmethod
    def affinity(cls) -> int:
        return 2  # submitit would look for srun on PATH, which does not include the emulator's

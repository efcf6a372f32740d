"""scancel: end jobs, or send them a signal."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from clusterctl.launcher.emulator import fifo, jobs
from clusterctl.launcher.emulator.job_request import Options, parse_signal
from clusterctl.launcher.emulator.jobs import UNKNOWN_JOB
from clusterctl.shared.errors import SlurmError

if TYPE_CHECKING:
    from clusterctl.launcher.emulator.virtual_cluster import Machine

_SCANCEL = Options("signal=/s batch/b full/f quiet/Q verbose/v")


def main(machine: Machine, arguments: list[str]) -> int:
    """A signal goes to the steps only; with --batch to the batch script only; with --full to both."""
    options, job_ids = _SCANCEL.parse(arguments, permute=True)
    if not job_ids:
        raise SlurmError("No job identification provided")
    jobs.bury_lost(machine)
    request = ["cancel"]
    if "signal" in options:
        scope = "full" if "full" in options else "batch" if "batch" in options else "steps"
        request = ["signal", str(int(parse_signal(options["signal"]))), scope]
    code = 0
    for target in job_ids:
        job_id, _, step = target.partition(".")
        try:
            for job in jobs.split(machine, job_id):
                if step:
                    number = parse_signal(options.get("signal", "KILL"))  # Slurm's default for a step
                    if not step.isdigit() or not fifo.send(job.steps / step, str(int(number)), "all"):
                        raise SlurmError(UNKNOWN_JOB)
                elif not job.record.state.ended:  # cancelling an ended job is no error in Slurm either
                    job.ask(*request)
        except SlurmError as error:
            print(f"scancel: error: Kill job error on job id {target}: {error.message}", file=sys.stderr)
            code = 1
    return code

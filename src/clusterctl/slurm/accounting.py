"""sacct: what Slurm's database keeps of a job that ended. Many sites have none; nothing here depends on it."""

from __future__ import annotations

from dataclasses import dataclass

from clusterctl.slurm.queue import SEPARATOR, JobState

_FIELDS = ("JobID", "State", "ExitCode", "NodeList", "Reason")
SACCT = ("sacct", "-n", "-P", f"--delimiter={SEPARATOR}", "-o", ",".join(_FIELDS), "-j")


@dataclass(frozen=True)
class Accounted:
    """One line of sacct's: a job, or a step of it ("12.0", "12.batch"). `state` is its first word, by whom the rest."""

    step: str
    state: str
    by: str
    exit_code: int
    signal: int
    nodes: str

    @property
    def job_id(self) -> str:
        return self.step.partition(".")[0]

    @property
    def ended(self) -> JobState | None:
        """How the job ended; None of a step, and of a job that goes on by what the database knows."""
        state = JobState(self.state)
        return state if self.step == self.job_id and state.ended else None


def parse_accounting(text: str) -> tuple[Accounted, ...]:
    """Read the answer to `SACCT`; never raises: a line that is none of sacct's is passed over."""
    found = []
    for line in text.splitlines():
        step, *values = line.split(SEPARATOR)
        if len(values) < len(_FIELDS) - 1:
            continue
        state, _, by = values[0].partition(" ")  # "CANCELLED by 1000"
        code, _, signal = values[1].partition(":")
        if code.isdigit() and signal.isdigit():
            uid = by.removeprefix("by ").strip()
            found.append(Accounted(step, state.rstrip("+"), uid, int(code), int(signal), values[2]))
    return tuple(found)

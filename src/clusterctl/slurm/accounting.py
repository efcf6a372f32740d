"""How a job ended: by sacct, of which many sites have no database, and by scontrol, which forgets it after minutes."""

from __future__ import annotations

import re
from dataclasses import dataclass

from clusterctl.slurm.queue import SEPARATOR, JobState

_FIELDS = ("JobID", "State", "ExitCode", "NodeList", "Reason")
SACCT = ("sacct", "-n", "-P", f"--delimiter={SEPARATOR}", "-o", ",".join(_FIELDS), "-j")

SHOW_JOB = ("scontrol", "show", "job")
_SHOWN = re.compile(r"(?:^|\s)(JobId|ArrayJobId|ArrayTaskId|JobState|ExitCode|NodeList)=(\S*)")


@dataclass(frozen=True)
class Accounted:
    """What sacct says in one line, or scontrol shows, of a job, or of a step of it ("12.0", "12.batch").

    `state` is the first word, `by` the number of the user who cancelled it.
    """

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


def parse_shown(text: str) -> tuple[Accounted, ...]:
    """Read the answer to `SHOW_JOB`, one job; never raises: what is missing is empty."""
    fields = dict(_SHOWN.findall(text))
    code, _, signal = fields.get("ExitCode", "").partition(":")
    if not (fields.get("JobId") and code.isdigit() and signal.isdigit()):
        return ()
    state, nodes = fields.get("JobState", ""), fields.get("NodeList", "")
    element = "ArrayTaskId" in fields and "ArrayJobId" in fields
    number = f"{fields['ArrayJobId']}_{fields['ArrayTaskId']}" if element else fields["JobId"]
    return (Accounted(number, state, "", int(code), int(signal), "" if nodes == "(null)" else nodes),)

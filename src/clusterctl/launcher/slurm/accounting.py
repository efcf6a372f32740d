"""How a job ended: from sacct, for which many sites have no database, or scontrol, which forgets jobs after minutes."""

from __future__ import annotations

import re
from dataclasses import dataclass

from clusterctl.launcher.slurm.queue import SEPARATOR, JobState

_FIELDS = ("JobID", "State", "ExitCode", "NodeList", "Reason")
SACCT = ("sacct", "-n", "-P", f"--delimiter={SEPARATOR}", "-o", ",".join(_FIELDS), "-j")

SHOW_JOB = ("scontrol", "show", "job")
_SHOWN = re.compile(r"(?:^|\s)(JobId|ArrayJobId|ArrayTaskId|JobState|ExitCode|NodeList)=(\S*)")


@dataclass(frozen=True)
class Accounted:
    """One record of sacct or scontrol about a job or one of its steps ("12.0", "12.batch").

    `state` is the first word of the state, `by` the ID of the user who cancelled it.
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
        """How the job ended; None for a step, and for a job that is still running according to the database."""
        state = JobState(self.state)
        return state if self.step == self.job_id and state.ended else None


def parse_accounting(text: str) -> tuple[Accounted, ...]:
    """Parse the answer to `SACCT`; never raises: foreign lines are ignored."""
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
    """Parse the answer to `SHOW_JOB` for one job; never raises: missing fields are empty."""
    fields = dict(_SHOWN.findall(text))
    code, _, signal = fields.get("ExitCode", "").partition(":")
    if not (fields.get("JobId") and code.isdigit() and signal.isdigit()):
        return ()
    state, nodes = fields.get("JobState", ""), fields.get("NodeList", "")
    element = "ArrayTaskId" in fields and "ArrayJobId" in fields
    number = f"{fields['ArrayJobId']}_{fields['ArrayTaskId']}" if element else fields["JobId"]
    return (Accounted(number, state, "", int(code), int(signal), "" if nodes == "(null)" else nodes),)

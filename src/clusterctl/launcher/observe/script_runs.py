"""How batch scripts of the user's own ended: nothing of ours is left to record it, so Slurm is asked, and it is noted.

Whoever first sees the end of such a job writes it into the attempt's host.json, which its start has left complete.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from clusterctl.launcher.observe.attempt import read_evidence
from clusterctl.launcher.observe.slurm_log import kept
from clusterctl.launcher.observe.state import settled
from clusterctl.launcher.slurm.queue import ScriptEnd
from clusterctl.shared.errors import SlurmError
from clusterctl.shared.record.fields import read_fields
from clusterctl.shared.record.files import read_whole, write_json
from clusterctl.shared.record.ownership import make_private

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from clusterctl.launcher.observe.attempt import RunEvidence
    from clusterctl.launcher.observe.run_record import RunRecord
    from clusterctl.launcher.slurm import Slurm
    from clusterctl.shared.spec import Cluster


UNRECORDED = (
    "its start was not recorded: its output is only in the file that the script names, "
    "by default slurm-JOB.out in the folder in which it was submitted"
)


def note_ends(found: Sequence[RunEvidence], slurm_of: Callable[[Cluster], Slurm]) -> list[RunEvidence]:
    """`found`, with the ends of batch scripts noted in their runs: at most one question for each controller."""
    asked: dict[object, dict[str, ScriptEnd]] = {}
    noted = []
    for evidence in found:
        end = None
        if evidence.record.is_script and evidence.record.is_ours and not settled(evidence):
            end = _end(evidence, slurm_of, asked)
        noted.append(_with(evidence, end) if end else evidence)
    return noted


def unseen_ranks(record: RunRecord) -> str:
    """Why the output of a batch script's ranks is only in the script's own; empty if they are seen, or it has none."""
    if not record.is_script:
        return ""
    attempts = record.run.attempts()
    if any(attempt.log_files("out") for attempt in attempts):
        return ""
    if attempts and not any(attempt.script_out.is_symlink() for attempt in attempts):
        return UNRECORDED
    from clusterctl.launcher.config.user_script import step_output_only  # slow to import, and seldom needed

    with suppress(OSError, ValueError):
        return step_output_only(read_whole(record.run.script).decode(errors="replace"))
    return ""


def _end(
    evidence: RunEvidence, slurm_of: Callable[[Cluster], Slurm], asked: dict[object, dict[str, ScriptEnd]]
) -> ScriptEnd | None:
    answer, job_id = evidence.answer, evidence.job_id
    if answer is None or job_id is None:
        return None
    if answer.job is None:
        lines = kept(evidence.record.run, job_id)[0] if answer.ended else ()
        accounted = (ScriptEnd(job_id, one.ended, None, one.exit_code, one.signal) for one in lines if one.ended)
        return next(accounted, None)
    if not answer.job.state.ended:
        return None
    controller = evidence.record.cluster.controller
    if controller not in asked:
        asked[controller] = {}
        with suppress(SlurmError):  # asked again at the next look
            ends = slurm_of(evidence.record.cluster).ends()
            asked[controller] = {one.job_id: one for one in ends if one.state.ended}
    return asked[controller].get(job_id)


def _with(evidence: RunEvidence, end: ScriptEnd) -> RunEvidence:
    """Note `end` in the last attempt; if the start could not be recorded, in an attempt without one."""
    run, last, job = evidence.record.run, evidence.last, evidence.job
    restarts = job.restart_count if job else last.restart_count if last else 0
    if last and last.restart_count == restarts:
        attempt, begun = run.attempt(last.number), read_fields(run.attempt(last.number).host_json).content
    elif job and job.nodes and job.start_time is not None:
        attempt = run.attempt(evidence.attempts[-1].number + 1 if evidence.attempts else 0)
        begun = {"attempt": attempt.number, "job_id": evidence.job_id, "restart_count": restarts, "nodes": job.nodes}
        begun["start"] = job.start_time
    else:
        return evidence
    try:
        make_private(attempt.path)
        ended = {"exit_code": 128 + end.signal if end.signal else end.code, "signal": "", "job_state": end.state.value}
        ended |= {"killed_by": end.signal} if end.signal else {}
        write_json(attempt.host_json, {**begun, **ended, "end": end.time or (job.end_time if job else None)})
    except OSError:  # a full disk: the state is still known from Slurm's answer
        return evidence
    return replace(
        read_evidence(evidence.record),
        answer=evidence.answer,
        job_id=evidence.job_id,
        late_seconds=evidence.late_seconds,
    )

"""What `-o json` prints, command by command, as plain values; `schemas/` describes them.

A new key needs no new version of its command's output; a changed or removed one does.
"""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusterctl.launcher.observe.measurements import progress
from clusterctl.launcher.observe.needs import needs_of
from clusterctl.launcher.observe.run_names import submission
from clusterctl.launcher.observe.telemetry import NOT_MEASURED
from clusterctl.shared.errors import SlurmError
from clusterctl.shared.record.metrics import KNOWN, Role, metric_of
from clusterctl.shared.spec import to_record

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from clusterctl.launcher.api.clean import CleanUp
    from clusterctl.launcher.api.images import Image
    from clusterctl.launcher.api.nodes import Fit
    from clusterctl.launcher.api.run import Run
    from clusterctl.launcher.api.several_clusters import Answered
    from clusterctl.launcher.api.sweeps import Sweep
    from clusterctl.launcher.api.usage import RunUsage, UsageReport
    from clusterctl.launcher.checks.surroundings import Check
    from clusterctl.launcher.config import Resolved
    from clusterctl.launcher.diagnosis.diagnose import Diagnosis
    from clusterctl.launcher.observe.comparison import Comparison, FileDifference
    from clusterctl.launcher.observe.needs import Needs
    from clusterctl.launcher.observe.state import Status
    from clusterctl.launcher.observe.status import RunStatuses
    from clusterctl.launcher.sandbox.lifecycle import SandboxStatus
    from clusterctl.launcher.slurm import Inventory
    from clusterctl.launcher.slurm.jobs import SlurmJob
    from clusterctl.shared.spec.keys import Difference

STATUS_SCHEMA = Path(__file__).parents[2] / "schemas" / "status.json"
_VERSION = {"schema_version": 1}  # of each command's output, so far


# Submitting


def submitted(run: Run) -> dict[str, Any]:
    """`submit`."""
    return {**_VERSION, "id": run.id, "job_id": run.job_id, "directory": str(run.path)}


def submitted_again(run: Run, earlier: Run, changes: Sequence[Difference]) -> dict[str, Any]:
    """`rerun`."""
    return {**submitted(run), "rerun_of": earlier.id, "changes": to_record([*changes])}


def submitted_sweep(sweep: Sweep) -> dict[str, Any]:
    """`submit --sweep`."""
    return {**_VERSION, "id": sweep.id, "runs": [run.id for run in sweep.runs], "directory": str(sweep.path)}


def job(resolved: Resolved) -> dict[str, Any]:
    """`config show`, with secrets hidden."""
    return {**_VERSION, "job": to_record(resolved.secrets.hide_in(resolved.job)), "origins": resolved.origins}


# Watching


def status(found: RunStatuses) -> dict[str, Any]:
    """`status`."""
    return {**_VERSION, "as_of": found.as_of, "runs": runs(found)}


def runs(found: RunStatuses) -> list[dict[str, Any]]:
    """The runs of `status`, which `-o jsonl` and `-o csv` print one by one."""
    return [run(one, found.as_of) for one in found.statuses]


def flat(found: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[dict[str, Any]]]:
    """The columns and rows of a table of `runs`: a program's own metrics are columns, too.

    One with the name of another column, such as "started", is in "metrics.started".
    """
    keys = json.loads(STATUS_SCHEMA.read_text(encoding="utf-8"))["$defs"]["run"]["properties"]
    columns = [key for key in keys if key not in ("metrics", "after", "requested", "used", "enough")]
    listed = {name for name, metric in KNOWN.items() if metric.listed}
    logged = {name for one in found for name in one["metrics"]} - listed
    own = {
        name: f"metrics.{name}" if name in keys else name
        for name in sorted(logged)
        if metric_of(name).role not in (Role.COUNT, Role.PART)
    }
    rows = []
    for one in found:
        metrics = {own[name]: value for name, value in one["metrics"].items() if name in own}
        rows.append({**metrics, **one, "tags": " ".join(one["tags"])})
    return [*columns, *own.values()], rows


def run(status: Status, now: float) -> dict[str, Any]:
    """One run of `status`."""
    record = status.record
    metrics = {name: _finite(value) for name, value in status.metrics.items()}
    listed = [metric for metric in KNOWN.values() if metric.listed]
    attempt = status.attempt
    at_work = attempt is not None and not status.state.ended
    pace = status.pace
    return {
        "id": record.run.id,
        "job": record.job.name,
        "sweep": submission(record.run.id) if submission(record.run.id) != record.run.id else None,
        "stage": status.state.value,
        "sure": status.sure,
        "job_id": status.job_id,
        "attempt": attempt.number if attempt else None,
        "attempts": len(status.attempts),
        "cancelling": status.cancelling,
        "reason": status.reason,
        "after": to_record([*record.predecessors]),
        **{metric.name: metrics.get(metric.name) for metric in listed if metric.role is not Role.RATE},
        "progress": progress(status.metrics),
        "seconds_left": status.seconds_left(now),
        "steps_per_second": pace.steps_per_second if pace else None,
        **{metric.name: metrics.get(metric.name) for metric in listed if metric.role is Role.RATE},
        "gpu_percent": attempt.gpu if attempt and at_work else None,
        "idle_since": attempt.idle_since if attempt and at_work else None,
        "gpus_idle_since": attempt.gpus_idle_since if attempt and at_work else None,
        "metrics": metrics,
        "nodes": record.job.resources.nodes,
        "tasks_per_node": record.tasks_per_node,
        "node_names": attempt.nodes if attempt else "",
        **({"left_out": to_record([*status.left_out])} if status.left_out or record.job.may_lose_nodes else {}),
        "created": record.created,
        "started": status.started,
        "ended": status.ended,
        "exit_code": status.exit_code,
        "directory": str(record.run.path),
        "work": str(record.run.work),
        "gpu_hours": status.gpu_hours(now),
        **resources(needs_of(status, attempt.used if attempt else NOT_MEASURED, now)),
        "note": record.job.note,
        "tags": list(record.job.tags),
    }


def resources(found: Needs) -> dict[str, Any]:
    """What one run requested of each node, used, and would have had enough of, in bytes, cores and seconds."""
    return {
        kind: {one.name: getattr(one, kind) for one in found.all if one.name != "gpu_memory" or kind != "enough"}
        for kind in ("requested", "used", "enough")
    }


def clusters(found: Iterable[Answered]) -> dict[str, Any]:
    """`status` of several clusters."""
    records = [
        {
            "cluster": one.cluster,
            "age_seconds": round(one.age, 1),
            "problem": one.problem.message if one.problem else None,
            "runs": runs(one.found) if one.found else [],
        }
        for one in found
    ]
    return {**_VERSION, "clusters": records}


def usage(found: UsageReport) -> dict[str, Any]:
    """`usage`."""
    rows, total = to_record([*found.rows]), to_record(found.total)
    return {**_VERSION, "as_of": found.as_of, "since": found.since, "by": found.by, "rows": rows, "total": total}


def run_usage(found: RunUsage) -> dict[str, Any]:
    """`usage RUN`."""
    return {
        **_VERSION,
        "as_of": found.as_of,
        "id": found.status.record.run.id,
        "stage": found.status.state.value,
        "gpu_percent": None if found.gpu_busy is None else 100 * found.gpu_busy,
        "cpu_percent": None if found.cpu_busy is None else 100 * found.cpu_busy,
        "counted_by_kernel": found.needs.counted,
        **resources(found.needs),
        "changes": [one.change for one in found.needs.all if one.change],
    }


def with_jobs(looked: RunStatuses | None, jobs: Iterable[SlurmJob], now: float) -> dict[str, Any]:
    """`status` with plain Slurm jobs, and without runs unless `looked` has them."""
    found = status(looked) if looked else {**_VERSION, "as_of": now, "runs": []}
    return {**found, "jobs": [plain_job(job) for job in jobs]}


def plain_job(job: SlurmJob) -> dict[str, Any]:
    """One job of `status` that clusterctl did not submit."""
    return {
        "job_id": job.job_id,
        "name": job.name,
        "state": job.state.value.lower(),
        "reason": job.reason,
        "partition": job.partition,
        "nodes": job.node_count,
        "node_names": job.nodes,
        "limit_seconds": job.limit,
        "created": job.submitted,
        "started": job.started,
        "ended": job.ended,
        "directory": job.work_dir,
    }


# Explaining


def why(diagnosis: Diagnosis) -> dict[str, Any]:
    """`why`."""
    found, *others = diagnosis.findings
    return {
        **_VERSION,
        "id": diagnosis.status.record.run.id,
        "job_id": diagnosis.status.job_id,
        "run_stage": diagnosis.status.shown,
        "class": found.cause_class.value,
        "certainty": found.certainty,
        "attempt": found.attempt,
        "rank": found.rank,
        **({"role": found.role, "role_rank": found.role_rank} if found.role else {}),
        "node": found.node or None,
        "stage": found.state or None,
        "step": found.step,
        "cause": found.cause,
        "traceback": found.traceback or None,
        "hint": found.hint or None,
        "facts": list(found.facts),
        "secondary": [
            {
                "rank": one.rank,
                "node": one.node,
                "cause": one.cause,
                **({"role": one.role, "role_rank": one.role_rank} if one.role else {}),
            }
            for one in found.secondary
        ],
        "others": [
            {
                "class": other.cause_class.value,
                "certainty": other.certainty,
                "rank": other.rank,
                "node": other.node or None,
                "cause": other.cause,
                "hint": other.hint or None,
            }
            for other in others
        ],
        "commands": list(diagnosis.commands),
        "unknown": list(diagnosis.unknown),
        "history": [
            {
                "attempt": past.attempt,
                "class": past.cause_class.value,
                "cause": str(past),
                "restarted_in": diagnosis.restarted_in(past.attempt),
                "went_on_with": diagnosis.went_on_with(past.attempt) or None,
            }
            for past in diagnosis.history
        ],
    }


def differences(found: Comparison, lines: Iterable[FileDifference] | None = None) -> dict[str, Any]:
    """`diff`; with `lines`, each file has its diff."""
    files: list[dict[str, Any]] | None = None
    if lines is not None:
        diffs = ((one, None if one.lines is None else "".join(f"{line}\n" for line in one.lines)) for one in lines)
        files = [{"name": one.name, "change": one.change, "diff": diff} for one, diff in diffs]
    elif found.code is not None:
        files = to_record([*found.code])
    return {
        **_VERSION,
        "runs": [
            {
                "id": status.record.run.id,
                "stage": status.state.value,
                "sure": status.sure,
                "attempts": len(status.attempts),
                "seconds": status.ran(found.as_of),
                "directory": str(status.record.run.path),
            }
            for status in found.statuses
        ],
        "configuration": to_record([*found.configuration]),
        "code": files if found.code is not None else None,
        "versions": to_record([*found.versions]),
        "image": to_record([*found.image]),
        "results": [
            {"metric": one.metric, "first": _finite(one.first), "second": _finite(one.second)} for one in found.results
        ],
    }


def _finite(value: float | None) -> float | None:
    """JSON has no NaN and no infinity."""
    return value if value is not None and math.isfinite(value) else None


# The cluster, and this machine


def nodes(inventory: Inventory, cluster: str | None) -> dict[str, Any]:
    """`nodes`. Memory is in MiB."""
    from clusterctl.launcher.config import load_cluster
    from clusterctl.launcher.slurm.nodes import gpus_by_type, largest_now

    partitions = []
    for partition in inventory.partitions.values():
        gpus = gpus_by_type(inventory.nodes_of(partition))
        partitions.append(
            {
                "name": partition.name,
                "default": partition.default,
                "up": partition.up,
                "longest_seconds": partition.longest,
                "most_nodes": partition.most_nodes,
                "nodes": list(partition.nodes),
                "gpus": {kind or "gpu": {"free": free, "total": total} for kind, (free, total) in gpus.items()},
                "largest_now": to_record(largest_now(partition, inventory)),
            }
        )
    every = [
        {
            "name": node.name,
            "partitions": list(node.partitions),
            "state": node.state,
            "flags": sorted(node.flags),
            "can_start": node.can_start,
            "reason": node.reason,
            "cpus": {"free": node.cpus_free, "total": node.cpus},
            "memory": {"free": node.memory_unallocated, "total": node.memory},
            "gpus": [{"type": kind.type, "total": kind.total, "used": kind.used} for kind in node.gpus],
            "features": sorted(node.features),
        }
        for node in inventory.nodes.values()
    ]
    return {
        **_VERSION,
        "cluster": load_cluster(cluster).name,
        "as_of": inventory.taken_at,
        "partitions": partitions,
        "nodes": every,
    }


def fit(found: Fit) -> dict[str, Any]:
    """`nodes --for JOB`."""
    from clusterctl.launcher.slurm.nodes import asked_of

    answer = found.answer
    return {
        **_VERSION,
        "job": found.resolved.job.name,
        "cluster": found.resolved.cluster.name,
        "asked": to_record(asked_of(found.resolved.job.resources)),
        "partitions": [{**to_record(room), "fits_now": room.fits_now} for room in found.rooms],
        "estimate": None if answer is None or isinstance(answer, SlurmError) else to_record(answer),
        "refused": answer.message if isinstance(answer, SlurmError) else None,
    }


def checks(cluster: str, found: Sequence[Check]) -> dict[str, Any]:
    """`doctor`."""
    keys = ("name", "verdict", "message", "hint", "fatal")
    records = [{key: getattr(check, key) for key in keys} for check in found]
    return {**_VERSION, "cluster": cluster, "ok": not any(check.fatal for check in found), "checks": records}


def sandbox(found: SandboxStatus) -> dict[str, Any]:
    """`sandbox status`."""
    values: dict[str, Any] = {**_VERSION, "up": found.sandbox is not None and not found.missing}
    if found.sandbox:
        values |= {
            "slurm_conf": str(found.sandbox.slurm_conf),
            "namespaces": found.sandbox.namespaces,
            "accounting": found.sandbox.request.accounting,
            "gpus_per_node": found.sandbox.request.gpus_per_node.written,
            "missing": list(found.missing),
            "nodes": [{"name": name, "state": found.nodes.get(name)} for name in found.sandbox.names],
        }
    return values


# Keeping


def image(found: Image) -> dict[str, Any]:
    """`image inspect`."""
    return {**_VERSION, **_image(found)}


def images(found: Iterable[Image]) -> dict[str, Any]:
    """`image list`."""
    return {**_VERSION, "images": [_image(one) for one in found]}


def _image(found: Image) -> dict[str, Any]:
    known = to_record(found.record) if found.record else {"problem": found.problem or "no record"}
    return {"name": found.name, "path": os.fspath(found.path), **known}


def clean_up(found: CleanUp, *, removed: bool) -> dict[str, Any]:
    """`clean`. `removed`: the data has been removed."""
    return {
        **_VERSION,
        "as_of": found.as_of,
        "taken": [{**vars(one), "path": os.fspath(one.path)} for one in found.taken],
        "removed": removed,
        "removals": [
            {"kind": one.kind, "path": os.fspath(one.path), "bytes": one.bytes, "since": one.since}
            for one in found.removals
        ],
        "staying": to_record([*found.staying]),
    }

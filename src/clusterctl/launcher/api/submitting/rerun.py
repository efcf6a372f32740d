"""Repeat a run: a new run with the same code and configuration, except for the given changes.

Once the job is resolved, it is an ordinary submission. The current content of the project folder does not matter: the
code is the snapshot of the earlier run, which both then share.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from clusterctl.launcher.api.settings import settings, typed
from clusterctl.launcher.api.submitting.past_runs import with_auto
from clusterctl.launcher.api.submitting.submission import SentRun
from clusterctl.launcher.api.submitting.submit import Start, dry_run, submission_of
from clusterctl.launcher.config import load_cluster, resolve_again, resolve_script_again
from clusterctl.launcher.config.resolution import with_environment
from clusterctl.launcher.config.shown import SILENT
from clusterctl.launcher.observe.run_record import make_directory, read_record, read_submission
from clusterctl.launcher.slurm import Slurm
from clusterctl.launcher.submission.new_run import Earlier
from clusterctl.launcher.submission.plan import has_project
from clusterctl.launcher.submission.snapshot import kept_code
from clusterctl.launcher.submission.user_script import read_frozen
from clusterctl.shared.errors import UsageError
from clusterctl.shared.record.fields import read_fields
from clusterctl.shared.spec import SCRIPT, to_record
from clusterctl.shared.spec.keys import Difference, differences, leaves_as_written

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from clusterctl.launcher.api.settings import Overrides
    from clusterctl.launcher.api.submitting.submit import DryRun
    from clusterctl.launcher.config import Resolved
    from clusterctl.launcher.config.shown import ProgressListener
    from clusterctl.shared.record.layout import RunDir
    from clusterctl.shared.spec import Cluster


def rerun_alone(
    run: RunDir,
    cluster: str | None = None,
    *,
    overrides: Overrides = (),
    in_allocation: str | None = None,
    hold: bool = False,
    progress: ProgressListener = SILENT,
) -> SentRun:
    """Submit a new run like `run`: see `start.rerun`."""
    again = _again(run, cluster, overrides)
    slurm, start = Slurm.of(again.resolved.cluster), Start(in_allocation, hold)
    one = submission_of(again.resolved, slurm, again.words, start, earlier=again.earlier, progress=progress)
    warnings = one.check()
    warnings += one.send()
    return SentRun(one.runs[0].plan.run, warnings, again.resolved.job)


def plan(
    run: RunDir, cluster: str | None = None, *, overrides: Overrides = (), in_allocation: str | None = None
) -> DryRun:
    """What `rerun` would submit with the same arguments. Raises what it raises, except for results of checks."""
    again = _again(run, cluster, overrides)
    return dry_run(again.resolved, in_allocation, earlier=again.earlier)


def changes(run: RunDir) -> tuple[Difference, ...]:
    """The changes of `run` to the run that it repeats; empty for any other run."""
    found = read_fields(run.run_json).tables("changes")
    return tuple(Difference(one.text("key"), one.content.get("first"), one.content.get("second")) for one in found)


def resolved_from(
    job: Mapping[str, Any], origins: Mapping[str, str], cluster: Cluster, changes: Iterable[str], run: RunDir
) -> Resolved:
    """The job of `run` from its record, for another submission; a batch script is the copy in its directory."""
    if job.get("workload") != SCRIPT:
        again = resolve_again(job, origins, cluster, changes, run_json=run.run_json)
        return with_environment(with_auto(again), run)
    script = read_frozen(run, tuple(map(str, job["argv"])))
    return resolve_script_again(script, job, origins, cluster, changes, run_json=run.run_json)


class _Again(NamedTuple):
    resolved: Resolved
    earlier: Earlier
    words: list[str]  # the equivalent command line


def _again(run: RunDir, cluster: str | None, overrides: Overrides) -> _Again:
    record = read_record(run)
    record.require_ours()
    make_directory(run, read_submission(run).job_id)
    where = load_cluster(cluster) if cluster else record.cluster
    given = settings(overrides)
    written = read_fields(run.run_json)
    job, origins = written.table("job"), written.table("origins").named_texts()
    # Without the jobs that the earlier run waited for, which Slurm may have forgotten.
    resources = {key: value for key, value in job.table("resources").content.items() if key != "dependency"}
    resolved = resolved_from({**job.content, "resources": resources}, origins, where, given, run)
    resolved = replace(resolved, typed=("rerun", run.id))
    if resolved.job.code != record.job.code or (has_project(resolved.job) and not has_project(record.job)):
        message = f"code: a rerun uses the code that {run.id} was submitted with"
        raise UsageError(message, "to run other code, submit the job again: clusterctl submit JOB")
    code = kept_code(run, project=has_project(resolved.job))
    before, after = record.job, resolved.secrets.hide_in(resolved.job)
    changed = differences(leaves_as_written(to_record(before)), leaves_as_written(to_record(after)))
    return _Again(resolved, Earlier(run, code, changed), typed("rerun", run.id, cluster, given))

"""`submit` for a job with stages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from clusterctl.cli import options
from clusterctl.cli.submit import echo_run, show_plan
from clusterctl.errors import UsageError

if TYPE_CHECKING:
    from clusterctl.api.run import Run


def check_stages(*, follow: bool, **one: Any) -> None:
    """Raise UsageError for options that apply to a single run."""
    if follow:
        raise UsageError(
            "--follow shows a single run",
            "watch the stages with: clusterctl status --watch; or choose one: --stage NAME",
        )
    if given := next((name for name, value in one.items() if value), None):
        raise UsageError(f"--{given.replace('_', '-')}: the job has several stages", "choose one: --stage NAME")


def submit_all(job: str | None, cluster: str | None, output: str, dry_run: str | None, **arguments: Any) -> list[Run]:
    """Submit every stage and print its run; a dry run prints the scripts."""
    assert job is not None  # a program has no stages
    from clusterctl.api import stages as api
    from clusterctl.display.build_progress import shown

    if dry_run:
        for plan in api.plan_stages(job, cluster, overrides=arguments["overrides"]):
            show_plan(plan, ask_slurm=dry_run == "slurm", large_code=arguments["large_code"])
        return []
    with shown() as progress:
        runs = api.submit_stages(job, cluster, **arguments, progress=progress)
    for run in runs:
        options.warn_of(run.warnings)
        echo_run(run, output)
    return runs

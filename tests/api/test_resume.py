"""Resuming a run: what is archived, what a refusal leaves, and a crash at every point."""

from __future__ import annotations

import os
import shutil
import stat
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clusterctl.launcher.api.submitting import resume as module
from clusterctl.launcher.api.submitting import submission
from clusterctl.launcher.api.submitting import submit as submitting
from clusterctl.launcher.config import Resolved, resolve
from clusterctl.launcher.observe.attempt import read_evidence
from clusterctl.launcher.observe.run_record import read_record
from clusterctl.launcher.slurm import JobState, QueuedJob, Slurm, Snapshot
from clusterctl.shared.errors import ConfigError, SlurmError, UsageError
from clusterctl.shared.record.files import read_json, write_json
from clusterctl.shared.record.layout import RunDir
from clusterctl.shared.record.states import State
from clusterctl.shared.spec import Cluster

PAST_JOB = module.PastJob("10", State.FAILED)


class Site:
    """A cluster whose sbatch counts its jobs, or refuses them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.slurm = Slurm(lambda command: str(folder / command), dict(os.environ))
        self.sbatch = folder / "sbatch"
        self.answer('n=$(ls "$0".jobs 2>/dev/null | wc -l); mkdir -p "$0".jobs/$n; echo "Submitted batch job 1$n"')
        (folder / "job.toml").write_text('workload = "command"\nargv = ["true"]\ncode = "."\n[resources]\nnodes = 2\n')

    def answer(self, shell: str) -> None:
        self.sbatch.write_text(f"#!/bin/sh\n{shell}\n")
        self.sbatch.chmod(stat.S_IRWXU)

    @property
    def jobs(self) -> int:
        folder = self.sbatch.with_name("sbatch.jobs")
        return len(list(folder.iterdir())) if folder.exists() else 0

    def resolved(self, *settings: str) -> Resolved:
        cluster = Cluster(name="site", runs=str(self.folder / "runs"))
        return resolve(str(self.folder / "job.toml"), cluster, settings, {}, self.folder)

    def ended(self) -> RunDir:
        """A cancelled run with one attempt."""
        (self.folder / "project").mkdir(exist_ok=True)
        return self.cancelled(self.resolved())

    def cancelled(self, resolved: Resolved) -> RunDir:
        one = submitting.submission_of(resolved, self.slurm)
        one.check()
        one.send()
        run = one.runs[0].plan.run
        run.attempt(0).path.mkdir()
        write_json(run.attempt(0).host_json, {"attempt": 0, "job_id": "10", "exit_code": 1, "start": 1, "end": 2})
        write_json(run.cancel_json, {"time": 3})
        return run

    def resume(self, run: RunDir, still_ended: Callable[[], module.PastJob] = lambda: PAST_JOB) -> None:
        module.send(run, self.resolved("resources.nodes=4"), self.slurm, still_ended)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def contents(run: RunDir) -> dict[str, bytes]:
    pickles = run.pickles  # submitit leaves one for a refused job
    paths = [path for path in run.path.rglob("*") if path.is_file() and not path.is_relative_to(pickles)]
    return {str(path.relative_to(run.path)): path.read_bytes() for path in paths}


def test_a_resume_replaces_the_submission_and_archives_the_old_one(site: Site) -> None:
    run = site.ended()
    before = contents(run)
    site.resume(run)
    assert read_json(run.submission_json)["job_id"] == "11"
    assert "#SBATCH --nodes=4" in run.script.read_text()
    assert not run.cancel_json.exists()
    for name in ("run.json", "script.sh", "submission.json", "cancel.json"):
        assert (run.submissions / "0" / name).read_bytes() == before[name]
    record = read_record(run)
    assert (record.job.resources.nodes, record.past_attempts, record.past_jobs) == (4, 1, {"10"})
    evidence = read_evidence(record)
    assert (evidence.job_id, evidence.last, evidence.cancelled_at, len(evidence.attempts)) == ("11", None, None, 1)
    site.resume(run, lambda: module.PastJob("11", State.FAILED))
    assert read_record(run).past_jobs == {"10", "11"}
    assert sorted(path.name for path in run.submissions.iterdir()) == ["0", "1"]


def test_a_refused_resume_changes_nothing(site: Site) -> None:
    run = site.ended()
    before = contents(run)
    site.answer("echo 'sbatch: error: invalid partition specified: x' >&2; exit 1")
    with pytest.raises(SlurmError, match="invalid partition"):
        site.resume(run)
    assert contents(run) == before


def test_a_run_that_was_copied_without_its_links_is_resumed_and_a_refusal_leaves_its_code(site: Site) -> None:
    run = site.ended()
    copied = run.snapshot
    run.code.unlink()
    shutil.copytree(copied, run.code, symlinks=True)
    (run.code / "lib" / "clusterctl" / "program.py").unlink()  # of another version
    before = contents(run)
    answer = site.sbatch.read_text()
    site.answer("echo 'sbatch: error: invalid partition specified: x' >&2; exit 1")
    with pytest.raises(SlurmError, match="invalid partition"):
        site.resume(run)
    assert contents(run) == before
    site.sbatch.write_text(answer)
    site.resume(run)
    assert (run.code / "lib" / "clusterctl" / "program.py").is_file()
    assert run.code.is_symlink()


def test_a_run_found_active_is_not_changed(site: Site) -> None:
    run = site.ended()
    before = contents(run)

    def alive() -> str | None:
        raise UsageError("it has not ended")

    with pytest.raises(UsageError):
        site.resume(run, alive)
    assert contents(run) == before
    assert site.jobs == 1


def test_a_lease_is_not_stale_just_because_the_local_clock_is_ahead(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, now = site.ended(), time.time
    monkeypatch.setattr(time, "time", lambda: now() + 3600)
    lease = run.path / ".resume"
    lease.mkdir()
    with pytest.raises(UsageError, match="already being resumed"):
        site.resume(run)
    assert site.jobs == 1


def test_only_one_process_resumes_a_run(site: Site) -> None:
    run = site.ended()

    def meanwhile() -> str | None:
        with pytest.raises(UsageError, match="already being resumed"):
            site.resume(run)
        return PAST_JOB

    site.resume(run, meanwhile)
    assert site.jobs == 2


@pytest.mark.parametrize(
    ("name", "when", "jobs"),
    [
        ("_archive", "before", 1),
        ("_archive", "after", 1),
        ("write_script", "after", 1),
        ("write_json", "after", 1),
        ("call_sbatch", "before", 1),
        ("call_sbatch", "after", 2),
        ("adopt", "before", 2),
    ],
)
def test_killing_a_resume_anywhere_loses_no_job_and_submits_none_twice(
    site: Site, monkeypatch: pytest.MonkeyPatch, name: str, when: str, jobs: int
) -> None:
    run = site.ended()
    work = getattr(submission, name)

    def killed(*arguments: Any, **named: Any) -> None:
        if when == "after":
            work(*arguments, **named)
        os._exit(9)

    if (pid := os.fork()) == 0:
        monkeypatch.setattr(submission, name, killed)
        site.resume(run)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9
    assert site.jobs == jobs
    evidence = read_evidence(read_record(run))
    queue = Snapshot({number: in_queue(number, run) for number in ("10", "11")[:jobs]}, 0.0)
    if jobs == 2:
        assert evidence.job_id is None
        found = queue.in_folder(run.path, evidence.record.past_jobs)
        assert found is not None
        assert found.job_id == "11"
        return
    with pytest.raises(UsageError, match="already being resumed"):
        site.resume(run)
    os.utime(run.path / ".resume", (0, 0))  # five minutes later
    site.resume(run)
    assert site.jobs == 2
    assert read_evidence(read_record(run)).job_id == "11"


def in_queue(number: str, run: RunDir) -> QueuedJob:
    return replace(QueuedJob("", JobState.RUNNING, "", "", None, None, 0, str(run.path)), job_id=number)


def test_a_resume_is_verified_like_a_submission(site: Site) -> None:
    run = site.ended()
    before = contents(run)
    (site.folder / "job.toml").write_text('workload = "reddit"\n[data]\nroot = "/tmp/no such data"\n')
    with pytest.raises(ConfigError, match="no data: /tmp/no such data"):
        site.resume(run)
    assert contents(run) == before
    assert site.jobs == 1


def test_a_resume_looks_for_the_program_in_the_runs_own_code(site: Site) -> None:
    program = 'workload = "command"\nargv = ["python", "train.py"]\ncode = "project"\n'
    (site.folder / "job.toml").write_text(program)
    (site.folder / "project").mkdir()
    (site.folder / "project" / "train.py").write_text("")
    run = site.ended()
    shutil.rmtree(site.folder / "project")
    site.resume(run)
    assert site.jobs == 2


def test_a_resume_archives_the_current_environment(site: Site) -> None:
    packages = site.folder / "env" / "lib" / "python3.12"
    packages.mkdir(parents=True)
    (packages / "a.py").touch()
    cluster = Cluster(name="site", runs=str(site.folder / "runs"), python_environments=(str(site.folder / "env"),))
    resolved = replace(site.resolved("resources.local_code=true"), cluster=cluster)
    run = site.cancelled(resolved)
    before = run.environment(0).resolve(strict=True)
    (packages / "b.py").touch()
    module.send(run, resolved, site.slurm, lambda: PAST_JOB)
    assert run.environment(0).resolve(strict=True) != before
    assert str(run.environment(0)) in run.script.read_text()
    write_json(run.cancel_json, {"time": 3})
    module.send(run, site.resolved(), site.slurm, lambda: PAST_JOB)
    assert not run.environments.exists()

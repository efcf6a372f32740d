"""Submitting from Python: one plan, the same checks each time, no output, many threads and clusters."""

from __future__ import annotations

import errno
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from support.mistake import Desk

import clusterctl
from clusterctl.launcher.api.submitting import submit as module
from clusterctl.launcher.submission.script import part
from clusterctl.shared.record.files import read_json

JOB = 'workload = "command"\nargv = ["true"]\n[env]\nMY_TOKEN = "{secret}"\n'
SBATCH = """\
mkdir -p "$0.jobs"; env >"$0.jobs/$$"; sleep 0.2; echo "Submitted batch job $$"
"""


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every plan made during the test."""
    plans: list[Any] = []
    make: Callable[..., Any] = module.make_plan

    def recorded(*arguments: Any, **named: Any) -> Any:
        plans.append(make(*arguments, **named))
        return plans[-1]

    monkeypatch.setattr("clusterctl.launcher.api.submitting.submit.make_plan", recorded)
    return plans


def test_a_plan_is_made_once_and_submitted(desk: Desk, planned: list[Any]) -> None:
    desk.use_slurm(sbatch="echo Submitted batch job 7")
    run = clusterctl.submit("synthetic", "site", overrides={"resources.nodes": 3})
    (plan,) = planned
    assert (plan.run.path, run.job_id) == (run.path, "7")
    assert run.directory.script.read_text() == module.render(plan)
    assert Path(dict(plan.exports)["PYTHONPATH"].split(":")[0]).parent == run.directory.code.resolve()
    assert f"--chdir={run.work}" in run.directory.script.read_text()


COUNTING = """
counter="${0%/*}/counter"
number=$(($(cat "$counter" 2>/dev/null || echo 6) + 1))
[ "$number" -lt LIMIT ] || { echo "sbatch: error: QOSMaxSubmitJobPerUserLimit" >&2; exit 1; }
echo $number >"$counter"
echo "$number $* ${cctl_succeeds-none}" >>"${0%/*}/sbatch.calls"
echo Submitted batch job $number
"""


@pytest.mark.parametrize(
    ("changes", "limit", "record"),
    [
        ({}, 99, {"of": "7", "job_id": "8", "jobs": "7 8 9"}),
        ({"restart.limit": 1}, 99, {"of": "7", "job_id": "8", "jobs": "7 8"}),
        ({}, 9, {"of": "7", "job_id": "8", "jobs": "7 8"}),
        ({}, 8, {"of": "7", "problem": "sbatch refused the job: QOSMaxSubmitJobPerUserLimit"}),
        ({"restart.limit": 0}, 99, None),
        ({"restart.by": "requeue"}, 99, None),
    ],
)
def test_where_jobs_may_not_call_sbatch_the_submission_queues_those_that_go_on(
    desk: Desk, changes: dict[str, object], limit: int, record: dict[str, str] | None
) -> None:
    """Each waits for all before it, so that none starts beside the run if another one is cancelled."""
    desk.use_slurm("successors = 2\n", sbatch=COUNTING.replace("LIMIT", str(limit)))
    run = clusterctl.submit("synthetic", "site", overrides=changes)
    assert run.job_id == "7"
    assert read_json(run.directory.successor_json) == record
    calls = (desk.folder / "fakes" / "sbatch.calls").read_text().splitlines()
    jobs = record.get("jobs", "7").split() if record else ["7"]
    assert [call.split()[0] for call in calls] == jobs
    for number, call in enumerate(calls[1:], 1):
        assert f"--dependency=afterany:{':'.join(jobs[:number])}" in call
        assert call.endswith(" ".join(jobs[:number]))
    assert calls[0].endswith("none")
    if record:
        assert run.directory.successor_json.read_text().count("\n") == 1, "the batch script reads a line"


def test_a_submitted_run_is_not_read_again(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.use_slurm(sbatch="echo Submitted batch job 7")
    run = clusterctl.submit("synthetic", "site")
    read = clusterctl.find(run.id)
    assert run == read
    batches = read.batches
    monkeypatch.setattr("clusterctl.launcher.observe.run_record.read_record", None)
    assert run.batches == batches


def test_submitting_imports_no_task_modules_and_reads_each_part_of_the_script_once(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.use_slurm(sbatch="echo Submitted batch job 7")
    for name in (of_tasks := ("clusterctl.shared.node.entry", "clusterctl.shared.node.node_link")):
        monkeypatch.delitem(sys.modules, name, raising=False)
    part.cache_clear()
    clusterctl.submit("synthetic", "site")
    assert not sys.modules.keys() & set(of_tasks)
    assert part.cache_info().misses == 6


def test_a_dry_run_calls_no_sbatch_and_writes_nothing(desk: Desk) -> None:
    desk.use_slurm()
    plan = clusterctl.plan("synthetic", "site", overrides={"resources.nodes": 3})
    assert "#SBATCH --nodes=3" in plan.script.splitlines()
    assert desk.run_directories() == []
    assert desk.asked("sbatch") == 0


def test_verify_and_submit_raise_the_same_errors(desk: Desk) -> None:
    desk.use_slurm()
    (desk.project / "data").mkdir()
    overrides = {"data.root": str(desk.project / "data")}
    with pytest.raises(clusterctl.ConfigError, match="no data") as planned:
        clusterctl.plan("reddit", "site", overrides=overrides).verify()
    with pytest.raises(clusterctl.ConfigError) as submitted:
        clusterctl.submit("reddit", "site", overrides=overrides)
    assert planned.value.text == submitted.value.text
    assert desk.run_directories() == []


def test_the_record_holds_the_equivalent_command(desk: Desk) -> None:
    desk.use_slurm(sbatch="echo Submitted batch job 7")
    run = clusterctl.submit("synthetic", "site", overrides={"resources.nodes": 3, "name": "a"}, hold=True)
    typed = ["submit", "synthetic", "--cluster", "site", "--set", "resources.nodes=3", "--set", 'name="a"']
    assert read_json(run.directory.run_json)["argv"] == typed


def test_a_program_needs_no_job_and_the_record_holds_the_equivalent_command(desk: Desk) -> None:
    desk.use_slurm(sbatch="echo Submitted batch job 7")
    desk.write("train.py", "")
    run = clusterctl.submit(
        cluster="site", program=["python", Path("train.py"), "--nodes"], overrides={"name": "a"}, in_allocation=None
    )
    record = read_json(run.directory.run_json)
    assert record["argv"] == ["submit", "--cluster", "site", "--set", 'name="a"', "--", "python", "train.py", "--nodes"]
    assert record["job"]["argv"] == ["python", "train.py", "--nodes"]
    assert clusterctl.plan(cluster="site", program=["python", "train.py"]).resolved.job.name == "train"


@pytest.mark.parametrize(
    ("program", "error"), [("python train.py", clusterctl.UsageError), (["python", 1], clusterctl.ConfigError)]
)
def test_a_program_must_be_a_list_of_strings(desk: Desk, program: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="a string"):
        clusterctl.submit(program=program)


def test_threads_can_submit_to_several_clusters_without_changing_the_environment(desk: Desk) -> None:
    """The environment of one job's sbatch affects neither other jobs nor this process."""
    desk.use_slurm(sbatch=SBATCH)
    for number in range(4):
        desk.write(f"cluster/c{number}.toml", f'slurm_conf = "/etc/conf-{number}"\npolling_floor = 0\n')
        desk.write(f"job{number}.toml", JOB.format(secret=f"secret-{number}"))
    before, seen = dict(os.environ), []
    stop = threading.Event()

    def watch() -> None:
        while not stop.wait(0.001):
            seen.append(dict(os.environ) == before)

    with ThreadPoolExecutor(5) as pool:
        watching = pool.submit(watch)
        runs = list(pool.map(lambda n: clusterctl.submit(f"./job{n}.toml", f"c{n}"), range(4)))
        stop.set()
        watching.result()
    assert all(seen)
    called = [path.read_text().splitlines() for path in (desk.folder / "fakes" / "sbatch.jobs").iterdir()]
    pairs = {tuple(sorted(line for line in lines if line.startswith(("MY_TOKEN=", "SLURM_CONF=")))) for lines in called}
    assert pairs == {(f"MY_TOKEN=secret-{n}", f"SLURM_CONF=/etc/conf-{n}") for n in range(4)}
    assert len({run.path for run in runs}) == 4
    assert desk.capture.readouterr() == (b"", b"")


def test_a_refusal_is_only_an_error(desk: Desk) -> None:
    desk.use_slurm(sbatch="echo 'sbatch: error: invalid partition specified: x' >&2; exit 1")
    with pytest.raises(clusterctl.SlurmError, match="invalid partition") as caught:
        clusterctl.submit("synthetic", "site")
    assert (caught.value.exit_code, "partition" in caught.value.hint) == (4, True)
    assert desk.run_directories() == []
    assert desk.capture.readouterr() == (b"", b"")


def test_a_job_that_slurm_accepted_is_recorded_even_if_the_disk_is_full(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    from submitit.core.utils import JobPaths

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    desk.use_slurm(sbatch="echo Submitted batch job 7")
    monkeypatch.setattr(JobPaths, "move_temporary_file", full)
    assert clusterctl.submit("synthetic", "site").job_id == "7"

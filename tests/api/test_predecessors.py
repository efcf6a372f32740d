"""Runs that wait for others: checked by their directories, passed to sbatch by job ID, and checked again on refusal."""

from __future__ import annotations

import re
import shutil

import pytest
from support.mistake import Desk

import clusterctl
from clusterctl import NotFoundError, Run, SlurmError, Sweep, UsageError
from clusterctl.shared.record.files import read_json, write_json
from clusterctl.shared.record.layout import RunDir

COUNT = 'd="$0.jobs"; mkdir -p "$d"; n=$(ls "$d" | wc -l); mkdir "$d/$n"; echo "Submitted batch job 1$n"'
PROBLEM = 'echo "sbatch: error: Batch job submission failed: Job dependency problem" >&2; exit 1'


class Site:
    """A Slurm whose jobs stay in the queue until a test removes them."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.queue = desk.folder / "queue"
        self.answer(COUNT)
        desk.write("job.toml", 'workload = "command"\nargv = ["true"]\n')

    def answer(self, sbatch: str) -> None:
        self.desk.use_slurm(sbatch=sbatch, squeue=f'cat "{self.queue}" 2>/dev/null || true')

    def submit(self, name: str = "first", **options: object) -> Run:
        run = clusterctl.submit("./job.toml", "site", overrides={"name": name}, **options)  # type: ignore[arg-type]
        self.show(run, "PENDING")
        return run

    def show(self, run: Run, state: str, reason: str = "None") -> None:
        """Make squeue show the run's job in `state`."""
        line = "\x1f".join([run.job_id or "", state, reason, "", "N/A", "N/A", "0", str(run.path), "\n"])
        others = self.queue.read_text().splitlines(keepends=True) if self.queue.exists() else []
        kept = [other for other in others if not other.startswith(f"{run.job_id}\x1f")]
        self.queue.write_text("".join([*kept, line]))

    def forget(self) -> None:
        """Make Slurm forget all jobs, as it does some minutes after they end."""
        self.queue.write_text("")

    @property
    def dependency(self) -> str:
        """The dependency given to the last sbatch."""
        lines = [line for line in self.desk._asked.read_text().splitlines() if line.startswith("sbatch ")]
        found = re.search(r"--dependency=(\S+)( --kill-on-invalid-dep=yes)", lines[-1])
        return found[1] if found else ""


@pytest.fixture
def site(desk: Desk) -> Site:
    return Site(desk)


def end(run: Run, code: int) -> None:
    """Record the end, as the batch script does."""
    attempt = run.directory.attempt(0)
    attempt.path.mkdir(parents=True)
    write_json(attempt.host_json, {"job_id": run.job_id, "start": 1, "end": 2, "exit_code": code})


def begin(run: Run) -> None:
    run.directory.attempt(0).path.mkdir(parents=True)
    write_json(run.directory.attempt(0).host_json, {"job_id": run.job_id, "start": 1})


def test_dependencies_use_the_job_ids_of_the_runs(site: Site) -> None:
    first, second, third = (site.submit(name) for name in ("first", "second", "third"))
    site.submit("last", after=[first, second.id], after_any="third", after_start="first")
    assert site.dependency == "afterok:10:11,afterany:12,after:10"
    record = read_json(clusterctl.find("last", "site").directory.run_json)
    conditions = [(first, "finished"), (second, "finished"), (third, "ended"), (first, "started")]
    assert record["after"] == [{"run": run.id, "condition": condition} for run, condition in conditions]
    typed = ["--after", first.id, "--after", second.id, "--after-any", third.id, "--after-start", first.id]
    assert record["argv"][-8:] == typed


def test_a_run_named_twice_is_one_dependency(site: Site) -> None:
    first = site.submit()
    site.submit("last", after=["first", "@last", first.id[:-2], first])
    assert site.dependency == "afterok:10"


def test_satisfied_conditions_are_not_passed_on(site: Site) -> None:
    finished, failed, begun = (site.submit(name) for name in ("finished", "failed", "begun"))
    end(finished, 0)
    end(failed, 3)
    begin(begun)
    site.show(begun, "RUNNING")
    site.submit("last", after="finished", after_any=["failed", "finished"], after_start=["begun", "failed"])
    assert site.dependency == ""
    site.forget()
    site.show(begun, "RUNNING")
    site.submit("later", after=["finished", "begun"], after_any="failed")
    assert site.dependency == "afterok:12"


def test_a_requeued_run_is_still_a_dependency(site: Site) -> None:
    run = site.submit()
    run.directory.attempt(0).path.mkdir(parents=True)
    host = {"job_id": "10", "start": 1, "end": 2, "exit_code": 75, "requeued": True}
    write_json(run.directory.attempt(0).host_json, host)
    site.submit("last", after=run, after_start=run)
    assert site.dependency == "afterok:10,after:10"


def test_a_failed_predecessor_is_refused_with_a_hint(site: Site) -> None:
    run = site.submit()
    end(run, 3)
    site.forget()
    before = site.desk.run_directories()
    with pytest.raises(UsageError, match=f"{run.id} has not finished: failed") as refused:
        site.submit("last", after=run)
    assert f"clusterctl resume {run.id}" in refused.value.hint
    assert "`after_any=`" in refused.value.hint
    assert site.desk.run_directories() == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"after": "nothing"}, "no run named: nothing"),
        ({"after_any": "nothing"}, "no run named: nothing"),
        ({"after_start": ["first", "nothing"]}, "no run named: nothing"),
        ({"after": "../first"}, "no run named: ../first"),
        ({"after": "last"}, "no run named: last"),  # itself, which is not a run yet
    ],
)
def test_an_unknown_predecessor_is_refused(site: Site, options: dict[str, object], message: str) -> None:
    site.submit()
    with pytest.raises(NotFoundError, match=re.escape(message)):
        site.submit("last", **options)
    assert len(site.desk.run_directories()) == 1


def test_a_predecessor_on_another_cluster_is_refused_while_it_runs(site: Site) -> None:
    run = site.submit()
    site.desk.write("cluster/other.toml", 'kind = "slurm"\nslurm_conf = "/etc/other.conf"\npolling_floor = 0\n')
    with pytest.raises(UsageError, match=f"{run.id} runs on cluster site, not other") as refused:
        clusterctl.submit("./job.toml", "other", after=run)
    assert f"clusterctl status {run.id}" in refused.value.hint
    end(run, 0)
    assert clusterctl.submit("./job.toml", "other", after=run).job_id == "11"
    assert site.dependency == ""


def test_a_predecessor_in_an_allocation_is_refused_while_it_runs(site: Site) -> None:
    run = site.submit()
    record = read_json(run.directory.run_json)
    write_json(run.directory.run_json, {**record, "allocation": "10"})
    site.show(run, "RUNNING")
    with pytest.raises(UsageError, match=f"{run.id} runs in allocation 10"):
        site.submit("last", after=run)


def test_a_predecessor_without_a_job_id_is_refused(site: Site) -> None:
    run = site.submit()
    run.directory.submission_json.unlink()
    site.forget()
    with pytest.raises(SlurmError, match=f"{run.id} has no job ID yet"):
        site.submit("last", after=run)


def test_nothing_is_submitted_while_it_is_unknown_whether_a_predecessor_has_ended(site: Site) -> None:
    run = site.submit()
    site.desk.use_slurm(sbatch=COUNT, squeue="echo 'squeue: error: no' >&2; exit 1")
    with pytest.raises(SlurmError, match=f"unknown whether {run.id} has ended: squeue: no"):
        clusterctl.submit("./job.toml", "site", after=run)
    assert len(site.desk.run_directories()) == 1


def test_after_and_dependency_cannot_be_combined(site: Site) -> None:
    run = site.submit()
    with pytest.raises(UsageError, match="cannot combine `after=` with `dependency`"):
        clusterctl.submit("./job.toml", "site", overrides={"resources.dependency": "afterok:7"}, after=run)


def test_a_run_in_an_allocation_cannot_have_predecessors(site: Site) -> None:
    with pytest.raises(UsageError, match="`after=`: a run in an allocation"):
        clusterctl.submit("./job.toml", "site", in_allocation="7", after="first")


def test_a_dry_run_shows_the_dependency_options(site: Site) -> None:
    site.submit()
    plan = clusterctl.plan("./job.toml", "site", after="first")
    assert plan.waiting == ("--dependency=afterok:10", "--kill-on-invalid-dep=yes")
    assert "#SBATCH --dependency" not in plan.script
    with pytest.raises(NotFoundError):
        clusterctl.plan("./job.toml", "site", after="nothing")


ENDS_MEANWHILE = """
case "$*" in
*--dependency*) mkdir -p "{attempt}"; echo '{host}' >"{attempt}/host.json"; {problem} ;;
esac
echo "Submitted batch job 20"
"""


def ends_meanwhile(run: Run, code: int) -> str:
    """An sbatch that finds that a run has ended since it was checked."""
    host = f'{{"job_id": "{run.job_id}", "start": 1, "end": 2, "exit_code": {code}}}'
    return ENDS_MEANWHILE.format(attempt=run.directory.attempt(0).path, host=host, problem=PROBLEM)


def test_a_run_that_finishes_before_sbatch_is_called_is_checked_again(site: Site) -> None:
    run = site.submit()
    site.answer(ends_meanwhile(run, 0))
    last = site.submit("last", after=run)
    assert (last.job_id, site.dependency, site.desk.asked("sbatch")) == ("20", "", 3)


def test_a_run_that_fails_before_sbatch_is_called_leaves_nothing_behind(site: Site) -> None:
    run = site.submit()
    site.answer(ends_meanwhile(run, 3))
    with pytest.raises(SlurmError, match=f"{run.id} has not finished: failed"):
        site.submit("last", after=run)
    assert site.desk.run_directories() == [run.path]
    assert site.desk.asked("sbatch") == 2


def test_a_dependency_that_slurm_refuses_is_not_retried(site: Site) -> None:
    site.submit()
    site.answer(PROBLEM)
    with pytest.raises(SlurmError, match="Job dependency problem"):
        site.submit("last", after="first")
    assert (len(site.desk.run_directories()), site.desk.asked("sbatch")) == (1, 2)


class TestSweep:
    """Waiting for a sweep means waiting for all of its runs."""

    @pytest.fixture
    def sweep(self, site: Site) -> Sweep:
        found = clusterctl.sweep("./job.toml", "site", axes=["env.N=1..3"], overrides={"name": "sweep"})
        for run in found.runs:
            site.show(run, "PENDING")
        return found

    def test_a_sweep_is_a_dependency_by_its_array_id(self, site: Site, sweep: Sweep) -> None:
        last = site.submit("last", after=sweep, after_any=sweep.id, after_start="sweep")
        assert site.dependency == "afterok:10,afterany:10,after:10"
        record = read_json(last.directory.run_json)
        assert record["after"] == [{"run": sweep.id, "condition": word} for word in ("finished", "ended", "started")]
        site.submit("newest", after="@last")
        assert site.dependency == "afterok:11"
        site.submit("element", after=f"{sweep.id}.1")
        assert site.dependency == "afterok:10_1"

    def test_a_finished_sweep_is_not_passed_on(self, site: Site, sweep: Sweep) -> None:
        end(sweep.runs[0], 0)
        site.submit("last", after=sweep)
        assert site.dependency == "afterok:10"
        for run in sweep.runs[1:]:
            end(run, 0)
        site.forget()
        site.submit("later", after=sweep)
        assert site.dependency == ""

    def test_a_sweep_has_started_once_all_its_runs_have(self, site: Site, sweep: Sweep) -> None:
        for run in sweep.runs[:2]:
            begin(run)
        site.submit("last", after_start=sweep)
        assert site.dependency == "after:10"
        begin(sweep.runs[2])
        site.submit("later", after_start=sweep)
        assert site.dependency == ""

    def test_one_failed_run_of_a_sweep_is_enough_to_refuse(self, site: Site, sweep: Sweep) -> None:
        end(sweep.runs[1], 3)
        with pytest.raises(UsageError, match=f"1 of the 3 runs of {sweep.id} did not finish") as refused:
            site.submit("last", after=sweep)
        assert refused.value.hint.startswith(f"first: clusterctl resume {sweep.id}\n")
        site.submit("anyway", after_any=sweep)
        assert site.dependency == "afterany:10"

    def test_an_array_with_a_resumed_run_is_a_dependency_by_element(self, site: Site, sweep: Sweep) -> None:
        end(sweep.runs[0], 0)
        end(sweep.runs[1], 3)
        sweep.resume()
        for run in sweep.runs:
            site.show(run, "RUNNING")
        assert [run.job_id for run in sweep.runs] == ["10_0", "11_0", "10_2"]
        site.submit("last", after=sweep)
        assert site.dependency == "afterok:11:10_2"

    def test_why_and_status_name_the_sweep(self, site: Site, sweep: Sweep) -> None:
        last = site.submit("last", after=sweep)
        site.show(last, "PENDING", "Dependency")
        assert last.status().held_up_by == f"after {sweep.id}"
        found = last.why().headline
        assert str(found) == f"waiting for all runs of {sweep.id} to finish"
        assert found.facts == (f"{sweep.id}: 3 runs: 3 queued",)

    def test_resuming_a_sweep_that_never_started_waits_again(self, site: Site) -> None:
        first = site.submit()
        sweep = clusterctl.sweep("./job.toml", "site", axes=["env.N=1..2"], overrides={"name": "sweep"}, after=first)
        assert site.dependency == "afterok:10"
        for run in sweep.runs:
            site.show(run, "CANCELLED", "DependencyNeverSatisfied")
        end(first, 3)
        with pytest.raises(UsageError, match=f"{first.id} has not finished: failed"):
            sweep.resume()
        first.resume()
        site.show(first, "PENDING")
        again = sweep.resume(axes=["env.N=3"])
        assert site.dependency == f"afterok:{first.job_id}"
        assert read_json(again.runs[2].directory.run_json)["after"] == [{"run": first.id, "condition": "finished"}]
        write_json(first.directory.attempt(0).host_json, {"job_id": first.job_id, "start": 1, "end": 2, "exit_code": 0})
        end(again.runs[0], 3)
        for run in again.runs[1:]:
            end(run, 0)
        sweep.resume()
        assert site.dependency == ""


class TestResume:
    """Resuming a run that Slurm cancelled before it started."""

    @pytest.fixture
    def chain(self, site: Site) -> tuple[Run, Run]:
        first = site.submit()
        last = site.submit("last", after=first)
        end(first, 3)
        site.show(last, "CANCELLED", "DependencyNeverSatisfied")
        return first, last

    def test_resume_is_refused_while_the_predecessor_has_failed(self, site: Site, chain: tuple[Run, Run]) -> None:
        first, last = chain
        before = contents(last.directory)
        with pytest.raises(UsageError, match=f"{first.id} has not finished: failed") as refused:
            last.resume()
        assert f"clusterctl resume {first.id}" in refused.value.hint
        assert contents(last.directory) == before

    def test_resume_waits_for_the_predecessor_again(self, site: Site, chain: tuple[Run, Run]) -> None:
        first, last = chain
        first.resume()
        site.show(first, "PENDING")
        assert site.dependency == ""
        last.resume()
        assert (first.job_id, last.job_id, site.dependency) == ("12", "13", "afterok:12")
        site.show(last, "CANCELLED", "DependencyNeverSatisfied")  # once more
        last.resume()
        assert site.dependency == "afterok:12"

    def test_resume_does_not_wait_for_a_finished_predecessor(self, site: Site, chain: tuple[Run, Run]) -> None:
        first, last = chain
        write_json(first.directory.attempt(0).host_json, {"job_id": "10", "start": 1, "end": 2, "exit_code": 0})
        site.forget()
        last.resume()
        assert (last.job_id, site.dependency) == ("12", "")

    def test_a_resume_that_slurm_refuses_changes_nothing(self, site: Site, chain: tuple[Run, Run]) -> None:
        first, last = chain
        first.resume()
        site.show(first, "PENDING")
        before = contents(last.directory)
        site.answer(PROBLEM)
        with pytest.raises(SlurmError, match="Job dependency problem"):
            last.resume()
        assert contents(last.directory) == before

    def test_resume_reports_a_removed_predecessor(self, site: Site, chain: tuple[Run, Run]) -> None:
        first, last = chain
        first.directory.run_json.unlink()
        with pytest.raises(clusterctl.ConfigError, match="cannot read"):
            last.resume()

    def test_resume_does_not_wait_for_a_predecessor_whose_directory_was_removed(
        self, site: Site, chain: tuple[Run, Run]
    ) -> None:
        first, last = chain
        shutil.rmtree(first.path)
        again = last.resume()
        assert (last.job_id, site.dependency) == ("12", "")
        assert f"{first.id}, on which it depended, no longer exists" in again.warnings[0].message

    def test_a_run_that_has_started_does_not_wait_again(self, site: Site) -> None:
        first = site.submit()
        last = site.submit("last", after=first)
        end(first, 0)
        end(last, 3)
        write_json(first.directory.attempt(0).host_json, {"job_id": "10", "start": 1, "end": 2, "exit_code": 3})
        last.resume()
        assert site.dependency == ""


def contents(run: RunDir) -> dict[str, bytes]:
    """The files of a run, without what is noted of Slurm's answers."""
    notes = (run.pickles, run.path / "accounting.json")
    paths = [path for path in run.path.rglob("*") if path.is_file() and not any(map(path.is_relative_to, notes))]
    return {str(path.relative_to(run.path)): path.read_bytes() for path in paths}


def test_a_forgotten_job_that_never_started_counts_as_cancelled(site: Site) -> None:
    first = site.submit()
    last = site.submit("last", after=first)
    end(first, 3)
    site.forget()
    status = last.status()
    assert (status.state, status.reason, status.sure) == ("cancelled", "DependencyNeverSatisfied", True)
    found = last.why()
    assert str(found.headline).startswith(f"Slurm cancelled it before it started, because {first.id}, on which it")
    assert found.commands == (f"clusterctl resume {first.id}", f"clusterctl resume {last.id}")


def test_why_names_the_predecessors_without_querying_nodes(site: Site) -> None:
    first = site.submit()
    second = site.submit("second", after=first)
    last = site.submit("last", after=second)
    site.show(second, "PENDING", "Dependency")
    site.show(last, "PENDING", "Dependency")
    before = site.desk.asked("sinfo")
    found = last.why()
    assert site.desk.asked("sinfo") == before
    assert str(found.headline) == f"waiting for {second.id} to finish"
    assert found.headline.facts == (
        f"{second.id}: queued, waiting for {first.id} to finish",
        f"  {first.id}: queued",
    )
    assert found.commands == (f"clusterctl status {first.id}", f"clusterctl cancel {last.id}")
    assert last.status().held_up_by == f"after {second.id}"


def test_why_handles_runs_that_wait_for_each_other(site: Site) -> None:
    first = site.submit()
    second = site.submit("second", after=first)
    record = read_json(first.directory.run_json)
    after = [{"run": run.id, "condition": "finished"} for run in (first, second)]
    write_json(first.directory.run_json, {**record, "after": after})
    for run in (first, second):
        site.show(run, "PENDING", "Dependency")
        assert f"waiting for {first.id} to finish" in str(run.why().headline)

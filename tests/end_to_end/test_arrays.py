"""Job arrays with sbatch and squeue: the emulator behaves like Slurm."""

from __future__ import annotations

import subprocess

import pytest
from support.scenario import ON_BOTH, NamedJobs, wait_until

# Each element creates begun.INDEX.RESTARTS, then waits for go.INDEX or go.all.
ELEMENT = """touch begun.$SLURM_ARRAY_TASK_ID.${SLURM_RESTART_COUNT:-0}
until [ -e go.$SLURM_ARRAY_TASK_ID ] || [ -e go.all ]; do sleep 0.1; done
[ ! -e fail.$SLURM_ARRAY_TASK_ID ]"""


def touch(queue: NamedJobs, *names: str) -> None:
    for name in names:
        (queue.stage.folder / name).touch()


@ON_BOTH  # the others on Slurm only in `make test-long`
def test_elements_start_in_order_up_to_the_limit(queue: NamedJobs) -> None:
    queue.submit("sweep", ELEMENT, "--array=0-5%2")
    limit = "PENDING JobArrayTaskLimit"
    queue.until_rows("<sweep>", f"sweep_[2-5%2] 2-5%2 {limit}", "sweep_0 0 RUNNING None", "sweep_1 1 RUNNING None")
    assert queue.rows("-r", "-j", "<sweep>_4") == {f"sweep_4 4 {limit}"}
    assert queue.rows("-j", "<sweep>_1") == {"sweep_1 1 RUNNING None"}
    assert len(queue.rows("-r", "-j", "<sweep>")) == 6
    queue.do("scontrol", "update", "JobId=<sweep>", "ArrayTaskThrottle=3")
    running = {index: f"sweep_{index} {index} RUNNING None" for index in range(6)}
    queue.until_rows("<sweep>", f"sweep_[3-5%3] 3-5%3 {limit}", running[0], running[1], running[2])
    touch(queue, "go.1")
    queue.until_rows("<sweep>", f"sweep_[4-5%3] 4-5%3 {limit}", running[0], running[2], running[3])
    touch(queue, "go.all")
    queue.until_rows("<sweep>")
    ended = queue.rows("--states=all", "-j", "<sweep>")
    assert ended == {f"sweep_{index} {index} COMPLETED None" for index in range(6)}


def test_each_element_has_its_own_job_id_and_the_last_has_the_arrays(queue: NamedJobs) -> None:
    names = "JOB_ID ARRAY_JOB_ID ARRAY_TASK_ID ARRAY_TASK_COUNT ARRAY_TASK_MIN ARRAY_TASK_MAX ARRAY_TASK_STEP"
    text = f"for name in {names}; do eval echo \\$SLURM_$name; done"
    queue.submit("sweep", f"#SBATCH --array=0-20:5\n{text}", "--output=%A_%4a_%j.out")
    queue.submit("listed", text, "--array=1,3,5-6", "--output=%A_%a.out")
    queue.until_rows("<sweep>,<listed>")
    folder, array = queue.stage.folder, int(queue.numbers["sweep"])
    found = sorted(path.name for path in folder.glob(f"{array}_*_*.out"))
    jobs = [int(name.removesuffix(".out").split("_")[2]) for name in found]
    assert found == [f"{array}_{index:04}_{job}.out" for index, job in zip(range(0, 21, 5), jobs, strict=True)]
    assert jobs[-1] == array
    assert len(set(jobs)) == 5
    for name, job, index in zip(found, jobs, range(0, 21, 5), strict=True):
        assert (folder / name).read_text().split() == [str(value) for value in (job, array, index, 5, 0, 20, 5)]
    listed = (folder / f"{queue.numbers['listed']}_5.out").read_text().split()
    assert listed[2:] == ["5", "4", "1", "6", "1"]


def test_scancel_takes_element_indices_or_the_whole_array(queue: NamedJobs) -> None:
    queue.submit("sweep", ELEMENT, "--array=0-9%3")
    for index in range(3):
        wait_until((queue.stage.folder / f"begun.{index}.0").exists)
    queue.do("scancel", "<sweep>_1", "<sweep>_[4-7]")
    running = [f"sweep_{index} {index} RUNNING None" for index in (0, 2, 3)]
    queue.until_rows("<sweep>", "sweep_[8-9%3] 8-9%3 PENDING JobArrayTaskLimit", *running)
    wait_until((queue.stage.folder / "begun.3.0").exists)  # RUNNING is shown before the script's first line has run
    queue.do("scancel", "<sweep>")
    queue.until_rows("<sweep>")
    begun = {path.name for path in queue.stage.folder.glob("begun.*")}
    assert begun == {f"begun.{index}.0" for index in range(4)}


def test_requeueing_an_element_restarts_only_that_element(queue: NamedJobs) -> None:
    queue.submit("sweep", ELEMENT, "--array=0-3%2", "--requeue")
    for index in range(2):
        wait_until((queue.stage.folder / f"begun.{index}.0").exists)
    queue.do("scontrol", "requeue", "<sweep>_0")
    touch(queue, "go.1", "go.2")
    wait_until((queue.stage.folder / "begun.0.1").exists)
    touch(queue, "go.all")
    queue.until_rows("<sweep>")
    begun = {path.name for path in queue.stage.folder.glob("begun.*")}
    assert begun == {"begun.0.0", "begun.0.1", "begun.1.0", "begun.2.0", "begun.3.0"}


def test_a_held_array_is_released_as_a_whole(queue: NamedJobs) -> None:
    queue.submit("sweep", ELEMENT, "--array=0-3", "--hold")
    assert queue.rows("-j", "<sweep>") == {"sweep_[0-3] 0-3 PENDING JobHeldUser"}
    touch(queue, "go.all")
    queue.do("scontrol", "release", "<sweep>")
    queue.until_rows("<sweep>")
    assert len(queue.rows("--states=completed", "-j", "<sweep>")) == 4


def test_one_element_is_held_while_the_others_run(queue: NamedJobs) -> None:
    queue.submit("sweep", ELEMENT, "--array=0-3%1")
    wait_until((queue.stage.folder / "begun.0.0").exists)
    queue.do("scontrol", "hold", "<sweep>_2")
    touch(queue, "go.all")
    wait_until((queue.stage.folder / "begun.3.0").exists)
    wait_until(lambda: len(queue.rows("-j", "<sweep>")) == 1)
    (held,) = queue.rows("-j", "<sweep>")
    assert held.startswith("sweep_2 2 PENDING JobHeld")  # by the user or, for root, by the administrator
    queue.do("scontrol", "release", "<sweep>_2")
    queue.until_rows("<sweep>")
    assert (queue.stage.folder / "begun.2.0").exists()


def test_requeueing_the_last_element_by_its_job_id_requeues_the_whole_array(queue: NamedJobs) -> None:
    queue.submit("sweep", f"echo $SLURM_JOB_ID >number.$SLURM_ARRAY_TASK_ID\n{ELEMENT}", "--array=0-1", "--requeue")
    for index in (0, 1):
        wait_until((queue.stage.folder / f"begun.{index}.0").exists)
    last = (queue.stage.folder / "number.1").read_text().strip()
    assert last == queue.numbers["sweep"]
    queue.do("scontrol", "requeue", last)
    for index in (0, 1):
        wait_until((queue.stage.folder / f"begun.{index}.1").exists)
    touch(queue, "go.all")
    queue.until_rows("<sweep>")


@pytest.mark.parametrize(("option", "heard"), [((), False), (("--batch",), True)])
def test_only_scancel_with_batch_signals_the_script_of_an_element(
    queue: NamedJobs, option: tuple[str, ...], heard: bool
) -> None:
    queue.submit("sweep", f"trap 'touch heard.$SLURM_ARRAY_TASK_ID' USR1\n{ELEMENT}", "--array=0-2%2")
    wait_until((queue.stage.folder / "begun.1.0").exists)
    queue.do("scancel", *option, "--signal=USR1", "<sweep>_1")
    if heard:
        wait_until((queue.stage.folder / "heard.1").exists)
    touch(queue, "go.all")
    queue.until_rows("<sweep>")
    assert [path.name for path in queue.stage.folder.glob("heard.*")] == ["heard.1"] * heard


@pytest.mark.long
def test_a_job_waits_for_a_whole_array_or_for_one_element(queue: NamedJobs) -> None:
    queue.submit("sweep", ELEMENT, "--array=0-2%1")
    kill = "--kill-on-invalid-dep=yes"
    queue.submit("all", "true", "--dependency=afterok:<sweep>", kill)
    queue.submit("any", "true", "--dependency=afterany:<sweep>")
    queue.submit("one", "true", "--dependency=afterok:<sweep>_0", kill)
    queue.submit("bad", "true", "--dependency=afterok:<sweep>_1", kill)
    queue.submit("not", "true", "--dependency=afternotok:<sweep>")
    queue.submit("begun", "true", "--dependency=after:<sweep>")
    queue.submit("next", "true", "--array=1-2", "--dependency=afterany:<sweep>_1")
    queue.until("all", "PENDING|Dependency|afterok:sweep_*(unfulfilled)")
    queue.until("bad", "PENDING|Dependency|afterok:sweep_1(unfulfilled)")
    queue.until_rows("<next>", "next_[1-2] 1-2 PENDING Dependency")
    touch(queue, "go.0", "fail.1")
    queue.until("one", "COMPLETED|None|(null)")
    assert queue.state("begun") == "PENDING|Dependency|after:sweep_*(unfulfilled)"
    touch(queue, "go.1")
    queue.until("bad", "CANCELLED|DependencyNeverSatisfied|afterok:sweep_1(failed)")
    queue.until_rows("<next>")
    queue.until("begun", "COMPLETED|None|(null)")  # the last element has begun
    assert queue.state("all") == "PENDING|Dependency|afterok:sweep_*(unfulfilled)"  # and has not ended
    touch(queue, "go.all")
    queue.until("all", "CANCELLED|DependencyNeverSatisfied|afterok:sweep_*(failed)")
    queue.until("any", "COMPLETED|None|(null)")
    queue.until("not", "COMPLETED|None|(null)")


def test_an_array_is_cancelled_when_its_dependency_fails(queue: NamedJobs) -> None:
    queue.submit("bad", "exit 3", "--hold")
    queue.submit("sweep", "true", "--array=0-3", "--dependency=afterok:<bad>", "--kill-on-invalid-dep=yes")
    queue.do("scontrol", "release", "<bad>")
    queue.until("sweep", "CANCELLED|DependencyNeverSatisfied|afterok:bad(failed)")


def test_an_invalid_list_of_indices_is_refused(queue: NamedJobs) -> None:
    for indices in ("x", "5-1", "0-10:0", "0-9:", "1 2", "1-2-3", "20001", "-3"):
        with pytest.raises(subprocess.CalledProcessError) as refused:
            queue.submit("sweep", "true", f"--array={indices}")
        assert "Batch job submission failed: Invalid job array specification" in refused.value.stderr
    assert "\nMaxArraySize " in "\n" + queue.do("scontrol", "show", "config")

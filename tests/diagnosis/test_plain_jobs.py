"""`why` for Slurm jobs that clusterctl did not submit, and for output files alone."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest
from support.failures import Figures, ask_about_output, ask_as_plain_job, is_plain, read_cases

from clusterctl.launcher.diagnosis.diagnose import Diagnosis
from clusterctl.launcher.diagnosis.finding import CERTAIN, LIKELY
from clusterctl.launcher.diagnosis.plain_jobs import diagnose_job, diagnose_output
from clusterctl.launcher.display.explanation import explanation
from clusterctl.launcher.observe.logs import read_output
from clusterctl.launcher.slurm import Slurm
from clusterctl.launcher.slurm.jobs import Accounted, SlurmJob
from clusterctl.launcher.slurm.queue import JobState
from clusterctl.shared.errors import Cause, SlurmError
from clusterctl.shared.record.states import State
from clusterctl.shared.spec import Cluster

NOW = 1767323000.0
START = NOW - 100
SITE = Cluster(name="site")
TRACEBACK = """Traceback (most recent call last):
  File "/home/nia/train.py", line 9, in <module>
    names[label]
KeyError: 'author'
"""
ECHO = """Traceback (most recent call last):
  File "/home/nia/train.py", line 12, in <module>
    dist.all_reduce(x)
RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.3.0.8]:12996
"""
DIED = "srun: error: node2: task 1: Exited with exit code 1\n"


def job(state: str = "FAILED", code: int = 1, **changes: object) -> SlurmJob:
    made = SlurmJob("812", JobState(state), "812", "net", "nia", nodes="node[1-2]", node_count=2, tasks=2)
    made = replace(made, submitted=START - 10, started=START, limit=3600)
    if made.state.ended:
        made = replace(made, ended=START + 50, exit_code=code)
    return replace(made, **changes)  # type: ignore[arg-type]


def silent(*_: object) -> str | None:
    raise SlurmError("squeue did not answer within 10 s")


def why(tmp_path: Path, text: str, of: SlurmJob | None = None, errors: str | None = None) -> Diagnosis:
    files = [tmp_path / "slurm-812.out"]
    files[0].write_text(text)
    if errors is not None:
        files.append(tmp_path / "slurm-812.err")
        files[1].write_text(errors)
    of = of or job()
    return diagnose_job(of, read_output(files, of.started), SITE, Slurm(silent), NOW)


def at(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(seconds))


def test_an_exception_that_srun_reports_is_certain_with_its_rank_and_node(tmp_path: Path) -> None:
    found = why(tmp_path, f"start\n{TRACEBACK}{DIED}").headline
    assert (found.cause_class, found.cause, found.certainty) == (Cause.USER, "KeyError: 'author'", CERTAIN)
    assert (found.rank, found.node, found.attempt, found.state) == (1, "node2", None, "")


def test_without_srun_the_exit_code_of_a_script_may_be_that_of_another_program(tmp_path: Path) -> None:
    found = why(tmp_path, f"start\n{TRACEBACK}", job(tasks=1)).headline
    assert (found.cause, found.certainty, found.rank) == ("KeyError: 'author'", LIKELY, None)


@pytest.mark.parametrize("after", [0, 1, 2, 3])
@pytest.mark.parametrize("prefix", ["", "[rank1]: ", "1: "])
def test_srun_may_report_the_failure_in_the_middle_of_its_traceback(tmp_path: Path, after: int, prefix: str) -> None:
    """Seen on Slurm 22.05, where both share the job's file."""
    lines = [f"{prefix}{line}\n" for line in TRACEBACK.splitlines()]
    found = why(tmp_path, "".join(["start\n", *lines[:after], DIED, *lines[after:]])).headline
    assert (found.cause, found.certainty, found.rank) == ("KeyError: 'author'", CERTAIN, 1)


def test_the_first_of_several_ranks_in_one_file_is_the_cause_and_the_last_an_echo(tmp_path: Path) -> None:
    text = f"{TRACEBACK}{ECHO}srun: error: node[1-2]: tasks 0-1: Exited with exit code 1\n"
    found = why(tmp_path, text).headline
    assert (found.cause, found.certainty) == ("KeyError: 'author'", LIKELY)


def test_labels_of_srun_name_the_rank(tmp_path: Path) -> None:
    lines = [*(f"0: {line}" for line in ECHO.splitlines()), *(f"1: {line}" for line in TRACEBACK.splitlines())]
    found = why(tmp_path, "\n".join(lines) + f"\n{DIED}srun: error: node1: task 0: Exited with exit code 1\n").headline
    assert (found.cause, found.rank) == ("KeyError: 'author'", 1)


OUT_OF_MEMORY = (
    "slurmstepd: error: Detected 1 oom_kill event in StepId=812.0. Some of the step tasks have been OOM Killed.\n"
    "srun: error: node1: task 0: Out Of Memory\n"
)
KILLED = "srun: error: node1: task 0: Killed\n"


@pytest.mark.parametrize("step", [OUT_OF_MEMORY, KILLED, "srun: error: Node failure on node2\n" + KILLED])
def test_a_killed_step_after_which_the_script_goes_on_is_not_the_cause(tmp_path: Path, step: str) -> None:
    goes_on = f"batch 64\n{step}retrying with batch 32\n"
    found = why(tmp_path, f"{goes_on}{TRACEBACK}{DIED}").headline
    assert (found.cause_class, found.cause, found.certainty) == (Cause.USER, "KeyError: 'author'", LIKELY)
    found = why(tmp_path, f"{goes_on}accuracy 0.2 is below 0.5: not saved\n", job(code=4)).headline
    assert (found.cause_class, found.certainty) == (Cause.USER, LIKELY)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (f"batch 64\n{KILLED}retrying with batch 32\n{KILLED}", 137),  # the second step was killed, too
        (f"batch 64\n{KILLED}cleaning up\n", 1),  # `srun ... || exit 1`
        (f"batch 64\n{KILLED}{TRACEBACK}retrying to connect\n{DIED}", 137),  # another rank's words; srun exits with 137
    ],
)
def test_a_killed_step_that_may_have_ended_the_script_remains_the_cause(tmp_path: Path, text: str, code: int) -> None:
    assert why(tmp_path, text, job(code=code)).headline.cause_class is Cause.KILLED


def test_lines_of_srun_about_a_node_of_another_job_are_ignored(tmp_path: Path) -> None:
    text = "the log of last night:\nsrun: error: {}: task 3: Out Of Memory\nit has no checkpoint to evaluate\n"
    found = why(tmp_path, text.format("node7"), job(code=3)).headline
    assert (found.cause_class, found.certainty) == (Cause.USER, LIKELY)
    assert why(tmp_path, text.format("node2"), job(code=3)).headline.cause_class is Cause.HOST_MEMORY


def test_a_file_that_ends_with_a_killed_program_shows_it_and_one_that_a_script_survived_does_not(
    tmp_path: Path,
) -> None:
    path = tmp_path / "slurm-812.out"
    killed = "/var/spool/slurmd/job812/slurm_script: line 7:  3131 Killed                  {}\n"
    path.write_text("epoch 3\n" + killed.format("python train.py"))
    found = why_file(path).headline
    assert (found.cause_class, found.certainty) == (Cause.KILLED, LIKELY)
    path.write_text(killed.format("nvidia-smi dmon > gpu.log") + TRACEBACK)
    found = why_file(path).headline
    assert (found.cause_class, found.certainty) == (Cause.USER, LIKELY)


def test_an_exit_code_alone_is_not_certain_in_a_file_since_scripts_test_exit_codes(tmp_path: Path) -> None:
    path = tmp_path / "slurm-812.out"
    for text, certainty in ((DIED, LIKELY), (f"epoch 3\n{TRACEBACK}{DIED}", CERTAIN)):
        path.write_text(text)
        assert why_file(path).headline.certainty == certainty


SUMMARY = """torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-01-02_03:05:57
  host      : node{node}
  rank      : {rank} (local_rank: 0)
  exitcode  : {code} (pid: 913)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
============================================================
"""


def test_of_torchruns_on_two_nodes_the_one_whose_worker_was_killed_is_named(tmp_path: Path) -> None:
    killed, echo = SUMMARY.format(node=2, rank=1, code=-9), ECHO + SUMMARY.format(node=1, rank=0, code=1)
    found = why(tmp_path, killed + echo + "srun: error: node[1-2]: tasks 0-1: Exited with exit code 1\n").headline
    assert found.cause_class is Cause.KILLED
    assert "worker with rank 1" in found.cause


@pytest.mark.parametrize(
    ("state", "cause", "words"),
    [
        ("TIMEOUT", Cause.TIME, "the time limit was reached"),
        ("DEADLINE", Cause.TIME, "its deadline passed (sbatch --deadline)"),
        ("NODE_FAIL", Cause.NODE, "Slurm lost a node of the job"),
        ("PREEMPTED", Cause.PREEMPTED, "another job took its nodes"),
        ("CANCELLED", Cause.CANCELLED, "cancelled by scancel"),
        ("OUT_OF_MEMORY", Cause.HOST_MEMORY, "exceeded the job's memory on its node and was killed by the kernel"),
    ],
)
def test_slurms_own_record_is_certain(tmp_path: Path, state: str, cause: Cause, words: str) -> None:
    found = why(tmp_path, "step 1\nstep 2\n", job(state, 0)).headline
    assert (found.cause_class, found.cause, found.certainty) == (cause, words, CERTAIN)


def test_an_end_by_slurm_is_not_certain_if_the_output_ends_with_an_error(tmp_path: Path) -> None:
    """It may have waited for what had failed."""
    found = why(tmp_path, f"epoch 1\n{TRACEBACK}", job("CANCELLED", 0))
    assert (found.headline.cause_class, found.headline.certainty) == (Cause.CANCELLED, LIKELY)
    assert found.findings[1].cause == "its output shows: KeyError: 'author'"


def test_a_script_whose_program_was_terminated_is_killed(tmp_path: Path) -> None:
    found = why(tmp_path, "epoch 1\n", job(code=143, tasks=1)).headline
    assert (found.cause_class, found.certainty) == (Cause.KILLED, LIKELY)


def test_a_script_that_slurm_could_not_start_was_not_killed(tmp_path: Path) -> None:
    """ExitCode=0:53, and no output: the commonest mistake is an output folder that nobody has made."""
    lost = job(signal=53, code=0, stdout=f"{tmp_path}/no such/out.txt", stderr=f"{tmp_path}/out.txt")
    found = diagnose_job(lost, read_output([tmp_path / "no such" / "out.txt"]), SITE, Slurm(silent), NOW)
    assert (found.headline.cause_class, found.headline.certainty) == (Cause.LAUNCH, LIKELY)
    assert found.headline.cause.endswith(f"the folder of its output does not exist: {tmp_path}/no such")
    assert found.headline.hint == f"mkdir -p '{tmp_path}/no such'"
    assert found.commands == ()


def test_a_node_in_the_output_cannot_become_a_command(tmp_path: Path) -> None:
    found = why(tmp_path, "srun: error: Node failure on n;reboot\n", job("NODE_FAIL", 0))
    assert found.commands[-1] == "scontrol show node 'n;reboot'"


def test_accounting_says_who_cancelled_it(tmp_path: Path) -> None:
    steps = (Accounted("812", "CANCELLED", "0", 0, 15, "node1"),)
    assert why(tmp_path, "", job("CANCELLED", 0, steps=steps)).headline.cause == "cancelled by root with scancel"


def test_a_job_that_never_started_needs_no_output() -> None:
    pending = job("CANCELLED", 0, nodes="", started=None)
    found = diagnose_job(pending, read_output([]), SITE, Slurm(silent), NOW)
    assert found.headline.cause == "cancelled by scancel before it started"
    assert found.unknown == ()


def test_a_script_that_went_on_after_a_failed_program_has_finished_and_the_error_is_shown(tmp_path: Path) -> None:
    found = why(tmp_path, f"{TRACEBACK}all done\n{DIED}", job("COMPLETED", 0))
    assert (found.status.state, found.headline.cause_class) == (State.FINISHED, Cause.FINISHED)
    (other,) = found.findings[1:]
    assert (other.cause, other.certainty) == ("its output shows: KeyError: 'author'", LIKELY)


def test_a_job_that_completed_and_wrote_warnings_has_only_finished(tmp_path: Path) -> None:
    text = "WARNING: CUDA out of memory, taking 64\nConnection refused, retrying\nepoch 3: loss 0.1\n"
    assert [found.cause_class for found in why(tmp_path, text, job("COMPLETED", 0)).findings] == [Cause.FINISHED]


def test_a_failed_rank_before_the_time_limit_is_named_and_not_certain(tmp_path: Path) -> None:
    """The others may have waited for it, or have gone on."""
    end = f"slurmstepd: error: *** JOB 812 ON node1 CANCELLED AT {at(START + 50)} DUE TO TIME LIMIT ***\n"
    found = why(tmp_path, f"{TRACEBACK}{DIED}{end}", job("TIMEOUT", 0)).headline
    assert (found.cause, found.certainty) == ("KeyError: 'author'", LIKELY)
    assert "Slurm ended the job later: the time limit was reached" in found.facts


def test_the_log_of_another_job_says_nothing_about_this_one(tmp_path: Path) -> None:
    shown = f"slurmstepd: error: *** JOB 99 ON node7 CANCELLED AT {at(START + 1)} DUE TO TIME LIMIT ***\n"
    shown += (
        "slurmstepd: error: Detected 1 oom_kill event in StepId=99.0. Some of the step tasks have been OOM Killed.\n"
    )
    found = why(tmp_path, f"{shown}{TRACEBACK}{DIED}").headline
    assert (found.cause, found.certainty) == ("KeyError: 'author'", CERTAIN)


def test_an_earlier_start_in_the_same_file_says_nothing_about_the_last_one(tmp_path: Path) -> None:
    earlier = f"slurmstepd: error: *** JOB 812 ON node1 CANCELLED AT {at(START - 900)} DUE TO PREEMPTION ***\n"
    found = why(tmp_path, f"{ECHO}{earlier}start\n{TRACEBACK}{DIED}", job(restarts=1)).headline
    assert (found.cause, found.certainty) == ("KeyError: 'author'", CERTAIN)


def test_a_lost_node_that_the_job_survived_is_not_its_end(tmp_path: Path) -> None:
    found = why(tmp_path, f"srun: error: Node failure on node3\ngoing on with 2 nodes\n{TRACEBACK}{DIED}").headline
    assert found.cause == "KeyError: 'author'"


def test_a_helper_killed_for_its_memory_does_not_make_memory_the_certain_cause(tmp_path: Path) -> None:
    found = why(tmp_path, f"the helper was killed, going on\n{TRACEBACK}", job("OUT_OF_MEMORY", 0, signal=125)).headline
    assert found.certainty == LIKELY


def test_a_program_that_pyxis_or_srun_could_not_start_is_no_mistake_in_it(tmp_path: Path) -> None:
    text = "starting on node1\nsrun: error: task 0 launch failed: User not found on host\n"
    found = why(tmp_path, text).headline
    assert (found.cause_class, found.cause) == (
        Cause.LAUNCH,
        "the user does not exist on the node (User not found on host)",
    )


def test_a_program_that_the_shell_does_not_find_is_no_mistake_in_it(tmp_path: Path) -> None:
    """As in `sbatch --wrap`, which dash runs."""
    text = "/var/spool/slurmd/job00812/slurm_script: 4: torchrunn: not found\n"
    found = why(tmp_path, text, job(code=127, tasks=1)).headline
    assert (found.cause_class, found.rank) == (Cause.LAUNCH, None)


def test_the_last_line_of_progress_is_not_the_reason_for_an_exit_code(tmp_path: Path) -> None:
    found = why(tmp_path, "epoch 1: loss 0.5\nepoch 2: loss 0.4\n", job(code=3, tasks=1)).headline
    assert (found.cause_class, found.cause) == (Cause.USER, "exited with 3")


def test_a_complaint_at_the_end_of_stderr_is(tmp_path: Path) -> None:
    found = why(tmp_path, "epoch 1\n", job(code=3, tasks=1), errors="data set not found: /data/x\n").headline
    assert (found.cause, found.certainty) == ("exited with 3: data set not found: /data/x", LIKELY)


def test_a_running_job_shows_where_since_when_and_a_rank_that_has_failed(tmp_path: Path) -> None:
    found = why(tmp_path, f"{TRACEBACK}{DIED}", job("RUNNING"))
    assert found.status.shown == "running"
    assert found.headline.cause == "its output shows: KeyError: 'author'"
    assert found.findings[-1].cause == "running on node[1-2] for 1m40s"
    assert any("nodes: squeue did not answer" in what or "nodes" in what for what in found.unknown)
    assert found.commands == ("clusterctl logs 812 -f", "clusterctl cancel 812")


def test_a_running_job_that_survived_something_is_not_accused(tmp_path: Path) -> None:
    text = f"{TRACEBACK}skipped that sample\nepoch 2\nRuntimeError: CUDA out of memory, taking 64\nepoch 3\n"
    assert [found.cause_class for found in why(tmp_path, text, job("RUNNING")).findings] == [Cause.HEALTHY]


def test_a_waiting_job_is_explained_like_a_run_and_what_slurm_does_not_answer_is_listed() -> None:
    held = job("PENDING", reason="JobHeldUser", nodes="", started=None)
    found = diagnose_job(held, read_output([]), SITE, Slurm(silent), NOW)
    assert found.headline.cause == "it is held by its user"
    assert found.headline.facts[0] == "it requests 2 nodes, with 1 CPU each, for 01:00:00"
    assert found.commands[0] == "scontrol release 812"
    assert len(found.unknown) == 2


def test_output_alone_is_explained_and_what_it_does_not_show_is_not_claimed(tmp_path: Path) -> None:
    def found(name: str, text: str) -> tuple[Cause, str, str]:
        (tmp_path / name).write_text(text)
        one = diagnose_output(name, read_output([tmp_path / name]), SITE, NOW).headline
        return one.cause_class, one.cause, one.certainty

    key_error = Cause.USER, "KeyError: 'author'"
    assert found("slurm-812.out", f"{TRACEBACK}{DIED}") == (*key_error, CERTAIN)
    assert found("slurm-812.out", TRACEBACK) == (*key_error, LIKELY)
    assert found("slurm-812.out", f"{TRACEBACK}{DIED}next step\n") == (*key_error, LIKELY)
    assert found("log.txt", f"{TRACEBACK}{DIED}") == (*key_error, LIKELY)
    assert found("slurm-812.out", "epoch 1\nepoch 2\n")[0] is Cause.UNKNOWN
    assert found("slurm-812.out", "")[0] is Cause.UNKNOWN
    end = "slurmstepd: error: *** JOB 812 ON node1 CANCELLED AT 2026-01-02T03:04:05 DUE TO TIME LIMIT ***\n"
    assert found("slurm-812.out", f"epoch 1\n{end}") == (Cause.TIME, "the time limit was reached", CERTAIN)
    assert found("slurm-99_812.out", f"epoch 1\n{end}") == (Cause.TIME, "the time limit was reached", LIKELY)
    assert found("slurm-813.out", f"epoch 1\n{end}")[0] is Cause.UNKNOWN


def test_a_huge_file_is_read_at_both_ends_and_hostile_text_is_harmless(tmp_path: Path) -> None:
    path = tmp_path / "slurm-812.out"
    with path.open("wb") as file:
        file.write(b"\x1b]0;title\x07" + b"x" * 100 + b"\n")
        file.truncate(2**36)
        file.seek(2**36)
        file.write(b"\n" + TRACEBACK.replace("author", "\x1b[2J\u202eauthor\x9b1m").encode() + DIED.encode())
    began = time.monotonic()
    found = why_file(path)
    assert time.monotonic() - began < 2
    lines = explanation(found)
    assert any("KeyError" in line for line in lines)
    assert not any(sign in line for line in lines for sign in "\x1b\x9b\u202e")


def why_file(path: Path) -> Diagnosis:
    return diagnose_output(path.name, read_output([path]), SITE, NOW)


@pytest.mark.long
def test_recorded_failures_are_named_as_plain_jobs_and_certain_is_a_promise_there_too() -> None:
    figures = Figures.of(filter(is_plain, read_cases()), ask_as_plain_job)
    assert figures.certain_but_wrong == []
    assert figures.class_right >= 0.95
    assert figures.rank_right >= 0.95
    assert max(answer.seconds for answer in figures.answers) < 2


@pytest.mark.long
def test_recorded_failures_are_named_from_their_output_alone() -> None:
    """A state that only Slurm knows is missing there."""
    figures = Figures.of(filter(is_plain, read_cases()), ask_about_output)
    assert figures.certain_but_wrong == []
    assert figures.class_right >= 0.95

"""What the batch script does around srun, in a real bash with a stand-in srun."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from shlex import quote
from typing import Any

import pytest
from support.hostile_shell import hostile_shell
from support.scenario import wait_until
from support.traces import attempt

import clusterctl
from clusterctl.config import Resolved
from clusterctl.diagnosis.endings import job_ending
from clusterctl.diagnosis.failure import known_line
from clusterctl.errors import Cause
from clusterctl.launch.plan import make_plan
from clusterctl.launch.script import part, render
from clusterctl.runs.layout import RunDir
from clusterctl.runs.marks import EXIT_RESTART
from clusterctl.runs.requests import Refusal
from clusterctl.spec import Cluster, CommandTrain, Container, Job, Resources

SOURCE = Path(clusterctl.__file__).parents[1]
CLUSTER, NO_CONTAINER = Cluster(name="c"), Container()
SAY_SO = 'for r in 0 1; do touch "$attempt/marks/0000$r.done"; done\n'


class Host:
    """A node: a run directory, and an srun that does what a test says."""

    def __init__(
        self,
        folder: Path,
        nodes: int = 1,
        tasks_per_node: int = 2,
        cluster: Cluster = CLUSTER,
        container: Container = NO_CONTAINER,
    ) -> None:
        self.run = RunDir(folder / "it's a run-20260102-030405-abcd")
        self.run.attempts_folder.mkdir(parents=True)
        (folder / "code" / "lib").mkdir(parents=True)
        self.run.run_json.write_text("{}")
        self.project = folder / "code" / "project"
        self.project.mkdir(parents=True)
        self.run.code.symlink_to(Path("..", "code"))
        job = Job(
            name="x",
            workload="command",
            argv=("true",),
            resources=Resources(nodes=nodes, tasks_per_node=tasks_per_node, gpus_per_node=0, warning=0),
            container=container,
            train=CommandTrain(),
        )
        resolved = Resolved(job, cluster, {}, folder)
        plan = make_plan(resolved, self.run, folder / "code", "0", "python")
        self.script = self.run.path / "slurm_script"  # as slurmd calls its copy
        self.script.write_text(render(plan))
        self.srun = folder / "bin" / "srun"
        self.srun.parent.mkdir()
        self.asked = folder / "asked"  # of scontrol
        self.steps = folder / "steps"  # the last word of each srun
        self.scontrol = ""  # what it does
        self.environment: dict[str, str] = {}  # of the submitter's shell

    def start(self, srun: str, restarts: int = 0) -> subprocess.Popen[bytes]:
        steps = quote(str(self.steps))
        prologue = f'#!/bin/bash\necho "${{!#}}" >>{steps}\n[ "${{!#}}" != true ] || exit 0\n'
        prologue += f"attempt={quote(str(self.run.attempts_folder))}/$CLUSTERCTL_ATTEMPT\n"
        self.srun.write_text(prologue + srun)
        self.srun.chmod(0o755)
        scontrol = self.srun.with_name("scontrol")
        scontrol.write_text(f'#!/bin/bash\necho "$@" >>{quote(str(self.asked))}\n{self.scontrol}\n')
        scontrol.chmod(0o755)
        environment = self.environment | {
            "PATH": f"{self.srun.parent}:{os.environ['PATH']}",
            "SLURM_JOB_ID": "12",
            "SLURM_JOB_NODELIST": "n[1-2]",
            "SLURM_RESTART_COUNT": str(restarts),
        }
        return subprocess.Popen(["bash", self.script], env=environment, stderr=subprocess.PIPE)

    def call(self, srun: str, restarts: int = 0) -> int:
        process = self.start(srun, restarts)
        process.communicate()
        return process.returncode

    @property
    def requeues(self) -> list[str]:
        asked = self.asked.read_text().splitlines() if self.asked.exists() else []
        return [line for line in asked if line.startswith("requeue")]

    def host(self, attempt: int = 0) -> dict[str, Any]:
        return dict(json.loads(self.run.attempt(attempt).host_json.read_text()))


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_a_run_whose_ranks_all_say_so_is_finished(host: Host) -> None:
    assert host.call(SAY_SO) == 0
    assert json.loads(host.run.finished_json.read_text())["attempt"] == 0
    record = host.host()
    assert record["start"] <= record["end"]
    assert (record["job_id"], record["nodes"], record["exit_code"], record["signal"]) == ("12", "n[1-2]", 0, "")


def with_tracker(host: Host, program: str) -> Host:
    words = f"tracker=(bash -c {quote(program)} bash {quote(str(host.run.path))})"
    text = host.script.read_text()
    assert text.count("tracker=()") == 1
    host.script.write_text(text.replace("tracker=()", words))
    return host


def test_the_tracker_runs_beside_the_ranks_and_its_input_ends_when_the_end_is_written_down(host: Host) -> None:
    begun = host.run.path / "begun"
    program = 'touch "$1/begun"; cat; cp "$1/attempts/0/host.json" "$1/seen"'
    assert with_tracker(host, program).call(f"until [ -e {quote(str(begun))} ]; do sleep 0.1; done\n{SAY_SO}") == 0
    assert "end" in json.loads((host.run.path / "seen").read_text())


@pytest.mark.parametrize("program", ["exit 3", "kill -KILL $$", "exec <&-; exit"])
def test_a_tracker_that_fails_changes_nothing(host: Host, program: str) -> None:
    assert with_tracker(host, program).call(f"sleep 1\n{SAY_SO}") == 0


def test_a_tracker_that_does_not_end_is_ended(host: Host) -> None:
    program = 'echo $$ >"$1/pid"; trap "" TERM; while :; do sleep 0.2; done'
    pid = host.run.path / "pid"
    begun = f"until [ -s {quote(str(pid))} ]; do sleep 0.1; done"
    began = time.monotonic()
    assert with_tracker(host, program).call(f"{begun}\n{SAY_SO}") == 0
    assert 9 < time.monotonic() - began < 60
    status = Path("/proc", pid.read_text().strip(), "status")
    wait_until(lambda: not status.exists() or "\nState:\tZ" in status.read_text(), 10, "its end")


def test_a_lost_node_is_no_success_though_srun_says_so(host: Host) -> None:
    one_rank = SAY_SO.replace("0 1", "0")
    assert host.call(one_rank) == 1
    assert not host.run.finished_json.exists()
    assert (host.host()["exit_code"], host.host()["signal"]) == (1, "LOST")


def late(host: Host) -> Host:
    """On NFS, as `stat` says, with a minute that takes some seconds."""
    stat = host.srun.with_name("stat")
    stat.write_text("#!/bin/bash\necho nfs\n")
    stat.chmod(0o755)
    host.script.write_text(host.script.read_text().replace("late=70", "late=6"))
    return host


def later(state: str, more: str = "") -> str:
    """What ranks on another node do, which the node of the script sees when srun has long ended."""
    moves = f'mv "$attempt/marks/$r.running" "$attempt/marks/$r.{state}"'
    change = f"(sleep 2; for r in 00000 00001; do {moves}; done; {more}) >/dev/null 2>&1 &\n"
    return 'touch "$attempt"/marks/0000{0,1}.running\n' + change


def test_ranks_that_ended_well_are_waited_for_where_other_nodes_files_come_late(host: Host) -> None:
    assert late(host).call(later("done")) == 0
    assert host.host()["signal"] == ""
    assert host.run.finished_json.exists()


def test_a_rank_that_failed_is_not_taken_for_a_killed_one(host: Host) -> None:
    assert late(host).call(CHECKPOINT + later("ended") + "exit 1") == 1
    assert host.requeues == []


def test_a_request_for_a_restart_is_waited_for_where_a_rank_left_because_of_one(host: Host) -> None:
    assert late(host).call(later("asked", 'sleep 1; touch "$attempt/marks/restart"') + "exit 143") == EXIT_RESTART
    assert host.requeues == ["requeue 12"]


def test_a_failure_is_told_at_once_where_every_rank_says_how_it_ended(host: Host) -> None:
    sleep = late(host).srun.with_name("sleep")
    sleep.write_text(f"#!/bin/bash\necho sleeps >>{quote(str(host.asked))}\n")
    sleep.chmod(0o755)
    assert host.call('touch "$attempt"/marks/0000{0,1}.ended; exit 3') == 3
    assert not host.asked.exists()


def test_what_was_submitted_may_come_late(host: Host) -> None:
    late(host)
    hidden = host.run.run_json.rename(host.run.path / "hidden")
    process = host.start(SAY_SO)
    time.sleep(1)
    hidden.rename(host.run.run_json)
    process.communicate()
    assert process.returncode == 0


def test_an_attempt_that_is_there_but_not_seen_is_passed_over(host: Host) -> None:
    """`[ -d` does not know it yet, and the server refuses to make it twice."""
    host.run.attempt(0).path.mkdir()
    blind = host.script.read_text().replace('while [ -d "$run/attempts/$number" ]', "while false")
    host.script.write_text(blind)
    assert host.call(SAY_SO) == 0
    assert host.host(1)["exit_code"] == 0


def test_calls_that_fail_now_and_then_are_made_again(host: Host) -> None:
    """mkdir and mv: the first of each fails before it did anything, the second after."""
    for command in ("mkdir", "mv"):
        count = quote(str(host.srun.with_name(f"{command}s")))
        stand_in = host.srun.with_name(command)
        stand_in.write_text(
            f"#!/bin/bash\necho >>{count}; n=$(wc -l <{count})\n"
            f'[ "$n" -eq 1 ] || {shutil.which(command)} "$@" || exit\n'
            f'[ "$n" -gt 2 ] || {{ echo "{command}: cannot $1: Input/output error" >&2; exit 1; }}\n'
        )
        stand_in.chmod(0o755)
    assert host.call(SAY_SO) == 0
    (claimed,) = (attempt for attempt in host.run.attempts() if attempt.host_json.exists())
    assert (host.host(claimed.number)["exit_code"], (claimed.marks / "finished").exists()) == (0, True)


def hidden_for_a_while(folder: str) -> str:
    return f'mv "{folder}" "{folder}-"; (sleep 1.5; mv "{folder}-" "{folder}") >/dev/null 2>&1 &\n'


def test_a_listing_that_fails_is_made_again(host: Host) -> None:
    """Of the marks: a finished run looked lost. Of the checkpoints: no attempt followed."""
    assert host.call(SAY_SO + hidden_for_a_while("$attempt/marks")) == 0
    assert (host.host()["signal"], host.run.finished_json.exists()) == ("", True)
    host.run.finished_json.unlink()
    (host.run.attempt(0).marks / "finished").unlink()
    late(host).script.write_text(host.script.read_text().replace("late=6", "late=1"))
    hidden = hidden_for_a_while("$CLUSTERCTL_RUN_DIR/checkpoints")
    assert host.call(ONE_KILLED + CHECKPOINT + hidden + "exit 137") == 137
    assert host.requeues == ["requeue 12"]


def test_ranks_are_counted_however_many_there_are(tmp_path: Path) -> None:
    """Their names are longer than a command line may be: with ARG_MAX of 2 MiB from some 10,000 ranks on."""
    host = Host(tmp_path, nodes=2500, tasks_per_node=8)
    mark = 'for r in {00000..19999}; do : >"$attempt/marks/$r.done"; done\n'
    assert host.call(mark + 'rm "$attempt/marks/19999.done"') == 1
    assert host.call(mark + 'rm "$attempt/marks/19999.done"; : >"$attempt/marks/19999.running"; exit 137') == 137
    assert host.host(1)["refused"] == Refusal.NO_PROGRESS
    assert host.call(mark) == 0
    assert host.run.finished_json.exists()


def test_functions_and_options_of_the_submitters_shell_change_nothing(host: Host, tmp_path: Path) -> None:
    called = tmp_path / "called"
    host.environment = hostile_shell(called, "shell.sh", "warm.sh", "work.sh", "batch.sh")
    assert {f"BASH_FUNC_{command}%%" for command in ("mv", "mkdir", "srun", "printf", "[")} <= set(host.environment)
    assert host.call(asks(host, 0) + SAY_SO) == EXIT_RESTART
    assert host.call(SAY_SO) == 0
    assert not called.exists()
    assert host.run.finished_json.exists()
    assert host.requeues == ["requeue 12"]


def test_what_the_cluster_lines_call_is_left_to_them(tmp_path: Path) -> None:
    host = Host(tmp_path, cluster=Cluster(name="c", setup=("module load cuda",)))
    host.environment = {"BASH_FUNC_module%%": '() { echo "loads $2"; }'}
    host.call(SAY_SO)
    assert host.run.attempt(0).host_log.read_text() == "loads cuda\n"


def test_a_failure_passes_through_and_the_next_attempt_has_its_own_folder(host: Host) -> None:
    assert host.call("echo first\nexit 3") == 3
    assert host.call(f"echo second\n{SAY_SO}") == 0
    assert [host.host(number)["exit_code"] for number in (0, 1)] == [3, 0]
    assert [host.run.attempt(number).host_log.read_text() for number in (0, 1)] == ["first\n", "second\n"]


def test_a_finished_run_is_not_run_again(host: Host) -> None:
    assert host.call(SAY_SO) == 0
    assert host.call("exit 9") == 0
    assert len(host.run.attempts()) == 1


def test_term_is_noted_and_srun_waited_for(host: Host) -> None:
    process = host.start('touch "$attempt/up"; sleep 0.5; exit 143')
    while not (host.run.attempt(0).path / "up").exists():
        assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    process.communicate()
    assert process.returncode == 143
    assert (host.host()["exit_code"], host.host()["signal"]) == (143, "TERM")


def test_what_the_attempt_writes_is_private(host: Host) -> None:
    host.call(SAY_SO)
    attempt = host.run.attempt(0)
    assert [path.stat().st_mode & 0o077 for path in (attempt.path, attempt.host_json, attempt.host_log)] == [0, 0, 0]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
@pytest.mark.parametrize("part", [".", "code", "code/lib"])
def test_code_in_a_folder_of_somebody_elses_is_not_loaded(host: Host, part: str) -> None:
    os.chown(host.run.path / part, 65534, 65534)
    process = host.start(SAY_SO)
    _, errors = process.communicate()
    assert process.returncode == 77
    assert b"not owned by this user" in errors
    assert host.run.attempts() == []


@pytest.mark.parametrize("part", ["code", "run.json"])
def test_what_was_removed_while_the_run_waited_is_named(host: Host, part: str) -> None:
    (host.run.path / part).rename(host.run.path / "moved")
    process = host.start(SAY_SO)
    _, errors = process.communicate()
    assert process.returncode == 66
    found = known_line(errors.decode().splitlines())
    assert found is not None
    assert (found.cause_class, found.attempt) == (Cause.LAUNCH, None)
    assert f"removed since submission: {host.run.path / part}" in found.cause
    assert "submit the job again" in found.cause
    assert host.run.attempts() == []


def test_a_run_folder_that_the_node_cannot_write_is_said_so(host: Host) -> None:
    host.run.attempts_folder.rmdir()
    process = host.start(SAY_SO)
    _, errors = process.communicate()
    assert process.returncode == 73
    assert b"cannot write to" in errors


ONE_KILLED = 'touch "$attempt/marks/00000.ended" "$attempt/marks/00001.running"\n'
CHECKPOINT = 'mkdir -p "$CLUSTERCTL_RUN_DIR/checkpoints/$CLUSTERCTL_ATTEMPT-7"\n'


def asks(host: Host, attempt: int, **details: Any) -> str:
    """What a task does that asks to be started again."""
    told = f"RunDir(Path({str(host.run.path)!r})).attempt({attempt}), 'warned', **{details!r}"
    imports = "from pathlib import Path; from clusterctl.runs.layout import RunDir"
    program = f"{imports}; from clusterctl.runs.requests import request_restart; request_restart({told})"
    return f"PYTHONPATH={quote(str(SOURCE))} {quote(sys.executable)} -c {quote(program)}\n"


def test_a_run_that_asks_for_it_goes_back_to_the_queue(host: Host) -> None:
    assert host.call(asks(host, 0, step=3) + "exit 143") == EXIT_RESTART  # srun gives the highest code of all ranks
    assert host.requeues == ["requeue 12"]
    assert (host.host()["requeued"], host.host()["exit_code"]) == (True, 75)


def test_it_does_even_if_every_rank_left_with_0(host: Host) -> None:
    assert host.call(asks(host, 0) + SAY_SO) == 75
    assert host.requeues == ["requeue 12"]
    assert not host.run.finished_json.exists()


def test_a_request_of_an_earlier_attempt_is_none(host: Host) -> None:
    host.call(asks(host, 0))
    assert host.call("exit 1") == 1
    assert host.requeues == ["requeue 12"]
    assert "requeued" not in host.host(1)


@pytest.mark.parametrize(
    ("before", "restarts", "why"),
    [
        ("", 20, Refusal.RESTART_LIMIT),
        ('echo "{}" >"$CLUSTERCTL_RUN_DIR/cancel.json"\n', 0, Refusal.CANCELLED),
        ('mkdir "$CLUSTERCTL_RUN_DIR/attempts/1"\n', 0, Refusal.SUPERSEDED),
    ],
)
def test_it_does_not_when_restarts_are_used_up_or_nobody_wants_it_any_more(
    host: Host, before: str, restarts: int, why: Refusal
) -> None:
    assert host.call(before + asks(host, 0), restarts) == 75
    assert host.requeues == []
    assert (host.host()["refused"], host.host().get("requeued")) == (why, None)
    assert f"not started again: {why}" in host.run.attempt(0).host_log.read_text()


def test_it_does_not_when_the_attempt_came_no_further_than_the_one_before(host: Host) -> None:
    host.call(asks(host, 0, step=3))
    host.call(asks(host, 1, step=3))
    assert host.requeues == ["requeue 12"]
    assert host.host(1)["refused"] == Refusal.NO_PROGRESS


REFUSES = 'echo "Requested operation is presently disabled for job 12" >&2; exit 1'
AWAY = "slurm_requeue error: Unable to contact slurm controller (connect failure)"
PENDING = "Job is pending execution for job 12"


def test_a_requeue_that_slurm_refuses_is_recorded_as_none(host: Host) -> None:
    host.scontrol = REFUSES
    assert host.call(asks(host, 0)) == 75
    assert host.requeues == ["requeue 12"]
    assert (host.host()["refused"], host.host().get("requeued")) == (Refusal.REQUEUE_FAILED, None)
    assert "presently disabled" in host.run.attempt(0).host_log.read_text()


def test_a_controller_that_is_away_for_a_while_is_asked_again(host: Host) -> None:
    sleep = host.srun.with_name("sleep")
    sleep.write_text(f'#!/bin/bash\necho "sleeps $1" >>{quote(str(host.asked))}\n')
    sleep.chmod(0o755)
    host.scontrol = f'[ "$(grep -c requeue {quote(str(host.asked))})" -eq 4 ] || {{ echo "{AWAY}" >&2; exit 1; }}'
    assert host.call(asks(host, 0)) == 75
    assert host.asked.read_text().splitlines() == [*["requeue 12", "sleeps 10"] * 3, "requeue 12"]
    assert (host.host()["requeued"], host.host().get("refused")) == (True, None)
    host.scontrol = f'echo "{AWAY}" >&2; exit 1'
    host.asked.unlink()
    assert host.call(asks(host, 1)) == 75
    assert host.asked.read_text().count("sleeps 10") == 60
    assert host.host(1)["refused"] == Refusal.REQUEUE_FAILED


def test_a_script_that_was_cut_off_with_its_node_does_not_requeue_the_start_that_replaced_it(host: Host) -> None:
    host.scontrol = f'mkdir {quote(str(host.run.attempts_folder / "1"))}; echo "{AWAY}" >&2; exit 1'
    sleep = host.srun.with_name("sleep")
    sleep.write_text("#!/bin/bash\n")
    sleep.chmod(0o755)
    assert host.call(asks(host, 0)) == 75
    assert host.requeues == ["requeue 12"]
    assert host.host()["refused"] == Refusal.SUPERSEDED


def test_successive_starts_give_their_ranks_different_step_numbers(host: Host) -> None:
    ranks = []
    for restarts in range(3):
        assert host.call("exit 1", restarts) == 1
        ranks.append([step == "true" for step in host.steps.read_text().splitlines()].index(False))
        host.steps.unlink()
    assert ranks == [0, 1, 0]


def test_a_job_that_slurm_has_sent_back_already_is_not_refused(host: Host) -> None:
    """By a preemption; or its answer to the first question was lost."""
    host.scontrol = f'echo "{PENDING}" >&2; exit 1'
    assert host.call(asks(host, 0)) == 75
    assert (host.host()["requeued"], host.host().get("refused")) == (True, None)


def test_the_term_with_which_slurm_ends_the_script_does_not_end_the_question(host: Host) -> None:
    host.scontrol = "kill -TERM $PPID $$; sleep 0.2"
    assert host.call(asks(host, 0)) == 75
    assert (host.host()["requeued"], host.host().get("refused")) == (True, None)


UNPACKING = 'echo "slurmstepd: error: pyxis: child 4145 terminated with signal 12" >&2\n'
TERM = "kill -TERM $PPID\n"


@pytest.mark.parametrize(
    ("srun", "state", "again"),
    [
        (UNPACKING, "RUNNING", True),  # the warning, of whatever
        (TERM, "RUNNING", True),  # the grace of a preemption
        (TERM, "CANCELLED", False),
        (TERM, "TIMEOUT", False),
        (UNPACKING.replace("12", "9"), "RUNNING", False),
        (UNPACKING + 'touch "$attempt/marks/00000.ended"\n', "RUNNING", False),
        ("", "RUNNING", False),
    ],
)
def test_a_start_that_a_warning_or_a_preemption_ended_before_any_rank_had_begun_is_made_again(
    host: Host, srun: str, state: str, again: bool
) -> None:
    host.scontrol = f'[ "$1" = show ] && echo "JobId=12 JobName=x\n   JobState={state} Reason=None"'
    host.scontrol += "\nexit 0"
    assert host.call(srun + "sleep 0.1; exit 1") == 1
    assert host.requeues == ["requeue 12"] * again
    assert host.host().get("requeued", False) is again


def test_it_is_made_again_as_often_as_the_run_may_be(host: Host) -> None:
    assert host.call(UNPACKING + "exit 1", restarts=20) == 1
    assert host.host()["refused"] == Refusal.RESTART_LIMIT


def test_a_run_whose_ranks_all_ended_well_is_finished_whatever_srun_says(host: Host) -> None:
    """As after the kernel killed a process that one of them had started."""
    assert host.call(SAY_SO + "exit 125") == 0
    assert host.run.finished_json.exists()


def test_an_srun_that_is_killed_on_the_first_node_is_told_from_bashs_word_on_it(host: Host) -> None:
    assert host.call("kill -KILL $$") == 137
    ending = job_ending(attempt(lines=host.run.attempt(0).host_log.read_text()))
    assert ending is not None
    assert ending.cause is Cause.KILLED


def test_the_script_refuses_for_the_reasons_that_are_known() -> None:
    script = part("batch.sh")
    refusal = script[script.index("refusal() {") : script.index("# Slurm may be unreachable")]
    named = re.findall(r"then echo ([a-z-]+)", refusal) + re.findall(r"refused=([a-z-]+)", script)
    assert sorted(named) == sorted(Refusal)


def test_a_killed_rank_is_reason_enough_if_there_is_a_new_checkpoint(host: Host) -> None:
    assert host.call(ONE_KILLED + CHECKPOINT + "exit 137") == 137
    assert host.requeues == ["requeue 12"]
    assert host.call(ONE_KILLED + "exit 137") == 137
    assert host.requeues == ["requeue 12"]


def test_a_killed_rank_whose_job_slurm_does_not_requeue_may_have_gone_with_its_node(host: Host) -> None:
    host.scontrol = REFUSES
    assert host.call(ONE_KILLED + CHECKPOINT + "exit 137") == 137
    assert (host.host()["signal"], host.host().get("requeued")) == ("LOST", None)


def test_an_exception_is_not(host: Host) -> None:
    assert host.call(CHECKPOINT + SAY_SO.replace('done"', 'ended"') + "exit 1") == 1
    assert host.requeues == []


def test_an_attempt_that_was_replaced_does_not_finish_the_run(host: Host) -> None:
    assert host.call('mkdir "$CLUSTERCTL_RUN_DIR/attempts/1"\n' + SAY_SO) == 0
    assert not host.run.finished_json.exists()
    host.run.finished_json.write_text('{"attempt": 0, "time": 1}\n')  # as if it had looked just before
    assert host.call(SAY_SO) == 0
    assert json.loads(host.run.finished_json.read_text())["attempt"] == 2


def test_the_tasks_find_a_copy_of_the_code_that_is_the_runs_own(host: Host) -> None:
    (host.project / "package").mkdir()
    (host.project / "package" / "a.py").write_text("1")
    (host.project / "b.sh").hardlink_to(host.project / "package" / "a.py")  # as snapshots may save room
    (host.project / "link").symlink_to("b.sh")
    for path, mode in (("package/a.py", 0o444), ("b.sh", 0o555), ("package", 0o555), (".", 0o555)):
        (host.project / path).chmod(mode)
    work = host.run.work
    write = f"cd {quote(str(work))} && echo 2 >>b.sh && echo 3 >package/new && touch new\n"
    assert host.call(write + SAY_SO) == 0
    assert [(work / name).read_text() for name in ("package/a.py", "b.sh", "package/new")] == ["1", "12\n", "3\n"]
    assert (work / "link").readlink() == Path("b.sh")
    assert os.access(work / "link", os.X_OK)
    assert (work / "package" / "a.py").stat().st_mtime_ns == (host.project / "package" / "a.py").stat().st_mtime_ns
    assert (work / "package" / "a.py").stat().st_mode & 0o200
    assert not (host.project / "new").exists()
    assert (host.project / "b.sh").read_text() == "1"


def test_a_further_attempt_goes_on_in_the_same_folder(host: Host) -> None:
    there = quote(str(host.run.work))
    (host.project / "config").write_text("as submitted")
    assert host.call(f"echo changed >{there}/config; exit 3") == 3
    assert host.call(f"[ $(cat {there}/config) = changed ] && {SAY_SO}") == 0


def test_a_copy_that_was_interrupted_is_made_again(host: Host) -> None:
    (host.project / "a.py").write_text("1")
    half = host.run.path / ".work.0"
    (half / "package").mkdir(parents=True)
    (half / "package").chmod(0o555)
    assert host.call(f"test -e {quote(str(host.run.work))}/a.py && {SAY_SO}") == 0
    assert [path.name for path in host.run.work.iterdir()] == ["a.py"]
    assert list(host.run.path.glob(".work*")) == []


def test_without_the_code_no_task_starts_and_the_record_says_why(host: Host) -> None:
    host.project.rmdir()
    assert host.call("touch $CLUSTERCTL_RUN_DIR/started") == 73
    assert (host.host()["no_work"], host.host().get("disk_full"), host.requeues) == (True, None, [])
    assert f"clusterctl: cannot create {host.run.work}: cp: " in host.run.attempt(0).host_log.read_text()
    assert not (host.run.path / "started").exists()
    assert list(host.run.path.glob("*work*")) == []


def test_a_job_that_ended_while_the_code_was_copied_starts_no_task(host: Host) -> None:
    """As at a time limit, whose TERM reaches cp too."""
    cp = host.srun.with_name("cp")
    cp.write_text("#!/bin/bash\nkill -TERM $(ps -o ppid= $PPID) $$\n")
    cp.chmod(0o755)
    assert host.call("touch $CLUSTERCTL_RUN_DIR/started") != 0
    assert (host.host()["signal"], host.host().get("no_work")) == ("TERM", None)
    assert not (host.run.path / "started").exists()


FILL = 'dd if=/dev/zero of="$CLUSTERCTL_RUN_DIR/ballast" bs=1k 2>/dev/null\n'


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", disk], check=True)
    yield disk
    subprocess.run(["umount", disk], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
def test_an_end_is_recorded_on_a_disk_that_is_full_by_then(small_disk: Path) -> None:
    host = Host(small_disk)
    assert host.call(FILL + "exit 3") == 3
    assert (host.host()["exit_code"], host.host()["disk_full"]) == (3, True)
    (host.run.path / "ballast").unlink()
    assert host.call(SAY_SO + FILL + "exit 0") == 0
    assert (host.host(1)["exit_code"], host.host(1)["disk_full"]) == (0, True)
    assert json.loads(host.run.finished_json.read_text())["attempt"] == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
def test_a_copy_for_which_there_is_no_room_leaves_nothing_and_is_made_when_there_is(small_disk: Path) -> None:
    host = Host(small_disk)
    (host.project / "data").write_bytes(bytes(150_000))
    assert host.call(SAY_SO) == 73
    assert (host.host()["no_work"], host.host()["disk_full"]) == (True, True)
    assert list(host.run.path.glob("*work*")) == []
    (host.project / "data").write_bytes(bytes(50_000))
    assert host.call(SAY_SO) == 0


def test_an_end_that_cannot_be_recorded_is_tried_again(host: Host) -> None:
    """As where a file system writes elsewhere what is written over (ZFS, btrfs)."""
    block = 'mv "$attempt/host.json" "$attempt/aside"; ln -s /dev/full "$attempt/host.json"\n'
    free = '(sleep 1.5; mv "$attempt/aside" "$attempt/host.json") >/dev/null 2>&1 &\n'
    assert host.call(block + free + "exit 3") == 3
    assert host.host()["exit_code"] == 3
    assert "retrying for half a minute" in host.run.attempt(0).host_log.read_text()


ENROOT = """#!/bin/bash
cd {store} || exit
case $1 in list) ls ;; remove) [ "$2" = --force ] && echo "$3" >>{removed} && rm "$3" ;; esac
"""
PYXIS = """
case $* in *--quiet*) while [ "$1" != sh ]; do shift; done; exec "$@" ;; esac
for left in {store}/pyxis_$SLURM_JOB_ID.*; do [ ! -e "$left" ] || exit 1; done
"""


def test_a_container_that_an_earlier_start_left_is_removed_before_the_next(tmp_path: Path) -> None:
    """pyxis calls it by job and step, and would fail: a job that goes back to the queue keeps its number."""
    pyxis = Cluster(name="c", container_runtime="pyxis")
    host = Host(tmp_path, cluster=pyxis, container=Container(image="/images/x.sqsh"))
    store, removed = tmp_path / "stored containers", tmp_path / "removed"
    store.mkdir()
    left = ["pyxis_12.0", "pyxis_12.1"]
    others = ["pyxis_112.0", "pyxis_12x.0", "pyxis_clusterctl_12_0a1b", "my own"]
    for name in (*left, *others):
        (store / name).touch()
    srun = PYXIS.format(store=quote(str(store))) + SAY_SO
    assert host.call(srun) == 1  # the first start of a job looks for none
    assert host.call(srun, restarts=1) == 1  # no enroot here: nothing is removed, and nothing said
    enroot = tmp_path / "bin" / "enroot"
    enroot.write_text(ENROOT.format(store=quote(str(store)), removed=quote(str(removed))))
    enroot.chmod(0o755)
    assert host.call(srun, restarts=2) == 0
    assert removed.read_text().split() == left
    assert sorted(path.name for path in store.iterdir()) == sorted(others)

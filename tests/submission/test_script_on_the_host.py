"""What the batch script does around srun, in a real bash with a stand-in srun."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from shlex import quote

import pytest
from support.batch_host import ALL_DONE, CHECKPOINT, NEWER, ONE_KILLED, Host, asks, hostile_shell
from support.scenario import wait_until
from support.traces import attempt

from clusterctl.launcher.diagnosis.failure import job_ending, known_line
from clusterctl.launcher.observe.attempt import read_host
from clusterctl.launcher.submission.script import part
from clusterctl.shared.errors import Cause
from clusterctl.shared.record.marks import EXIT_RESTART, Refusal
from clusterctl.shared.spec import Cluster, Container
from clusterctl.shared.spec.job import Restart


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_a_run_with_all_ranks_done_is_finished(host: Host) -> None:
    assert host.call(ALL_DONE) == 0
    assert json.loads(host.run.finished_json.read_text())["attempt"] == 0
    record = host.host()
    assert record["start"] <= record["end"]
    assert (record["job_id"], record["nodes"], record["exit_code"], record["signal"]) == ("12", "n[1-2]", 0, "")


def with_tracker(host: Host, program: str) -> Host:
    words = f"cctl_tracker=(bash -c {quote(program)} bash {quote(str(host.run.path))})"
    text = host.script.read_text()
    assert text.count("cctl_tracker=()") == 1
    host.script.write_text(text.replace("cctl_tracker=()", words))
    return host


def test_the_tracker_runs_beside_the_ranks_and_its_stdin_closes_after_the_end_is_recorded(host: Host) -> None:
    begun = host.run.path / "begun"
    program = 'touch "$1/begun"; cat; cp "$1/attempts/0/host.json" "$1/seen"'
    assert with_tracker(host, program).call(f"until [ -e {quote(str(begun))} ]; do sleep 0.1; done\n{ALL_DONE}") == 0
    assert "end" in json.loads((host.run.path / "seen").read_text())


@pytest.mark.parametrize("program", ["exit 3", "kill -KILL $$", "exec <&-; exit"])
def test_a_tracker_that_fails_changes_nothing(host: Host, program: str) -> None:
    assert with_tracker(host, program).call(f"sleep 1\n{ALL_DONE}") == 0


def test_a_tracker_that_does_not_exit_is_killed(host: Host) -> None:
    program = 'echo $$ >"$1/pid"; trap "" TERM; while :; do sleep 0.2; done'
    pid = host.run.path / "pid"
    begun = f"until [ -s {quote(str(pid))} ]; do sleep 0.1; done"
    began = time.monotonic()
    assert with_tracker(host, program).call(f"{begun}\n{ALL_DONE}") == 0
    assert 9 < time.monotonic() - began < 60
    status = Path("/proc", pid.read_text().strip(), "status")
    wait_until(lambda: not status.exists() or "\nState:\tZ" in status.read_text(), 10, "its end")


def test_losing_a_node_is_a_failure_even_if_srun_exits_0(host: Host) -> None:
    one_rank = ALL_DONE.replace("0 1", "0")
    assert host.call(one_rank) == 1
    assert not host.run.finished_json.exists()
    assert (host.host()["exit_code"], host.host()["signal"]) == (1, "LOST")


def late(host: Host) -> Host:
    """Pretend to be on NFS, with the minute of waiting cut to a few seconds."""
    stat = host.srun.with_name("stat")
    stat.write_text('#!/bin/bash\n[ "$1" = -f ] || exec /usr/bin/stat "$@"\necho nfs\n')
    stat.chmod(0o755)
    host.script.write_text(host.script.read_text().replace("cctl_late=70", "cctl_late=6"))
    return host


def later(state: str, more: str = "") -> str:
    """What ranks on another node do; the node of the script sees it long after srun has ended."""
    moves = f'mv "$attempt/marks/$r.running" "$attempt/marks/$r.{state}"'
    change = f"(sleep 2; for r in 00000 00001; do {moves}; done; {more}) >/dev/null 2>&1 &\n"
    return 'touch "$attempt"/marks/0000{0,1}.running\n' + change


def test_on_nfs_the_script_waits_for_the_marks_of_finished_ranks(host: Host) -> None:
    assert late(host).call(later("done")) == 0
    assert host.host()["signal"] == ""
    assert host.run.finished_json.exists()


def test_a_failed_rank_is_not_mistaken_for_a_killed_one(host: Host) -> None:
    assert late(host).call(CHECKPOINT + later("ended") + "exit 1") == 1
    assert host.requeues == []


def test_on_nfs_the_script_waits_for_a_restart_request(host: Host) -> None:
    assert late(host).call(later("asked", 'sleep 1; touch "$attempt/marks/restart"') + "exit 143") == EXIT_RESTART
    assert host.requeues == ["requeue 12"]


def test_on_nfs_a_failure_is_reported_at_once_if_every_rank_left_a_mark(host: Host) -> None:
    sleep = late(host).srun.with_name("sleep")
    sleep.write_text(f"#!/bin/bash\necho sleeps >>{quote(str(host.asked))}\n")
    sleep.chmod(0o755)
    assert host.call('touch "$attempt"/marks/0000{0,1}.ended; exit 3') == 3
    assert not host.asked.exists()


def test_run_json_may_appear_late(host: Host) -> None:
    late(host)
    hidden = host.run.run_json.rename(host.run.path / "hidden")
    process = host.start(ALL_DONE)
    time.sleep(1)
    hidden.rename(host.run.run_json)
    process.communicate()
    assert process.returncode == 0


def test_an_attempt_folder_that_is_not_yet_visible_is_skipped(host: Host) -> None:
    """`[ -d` does not see it yet, and the server refuses to create it twice."""
    host.run.attempt(0).path.mkdir()
    blind = host.script.read_text().replace('while [ -d "$cctl_run/attempts/$cctl_number" ]', "while false")
    host.script.write_text(blind)
    assert host.call(ALL_DONE) == 0
    assert host.host(1)["exit_code"] == 0


def test_transient_failures_are_retried(host: Host) -> None:
    """The first mkdir and mv fail before doing anything, the second ones after doing it."""
    for command in ("mkdir", "mv"):
        count = quote(str(host.srun.with_name(f"{command}s")))
        stand_in = host.srun.with_name(command)
        stand_in.write_text(
            f"#!/bin/bash\necho >>{count}; n=$(wc -l <{count})\n"
            f'[ "$n" -eq 1 ] || {shutil.which(command)} "$@" || exit\n'
            f'[ "$n" -gt 2 ] || {{ echo "{command}: cannot $1: Input/output error" >&2; exit 1; }}\n'
        )
        stand_in.chmod(0o755)
    assert host.call(ALL_DONE) == 0
    (claimed,) = (attempt for attempt in host.run.attempts() if attempt.host_json.exists())
    assert (host.host(claimed.number)["exit_code"], (claimed.marks / "finished").exists()) == (0, True)


def hidden_for_a_while(folder: str) -> str:
    return f'mv "{folder}" "{folder}-"; (sleep 1.5; mv "{folder}-" "{folder}") >/dev/null 2>&1 &\n'


def test_a_failed_listing_is_retried(host: Host) -> None:
    """Otherwise a finished run looks lost (marks), or is not requeued (checkpoints)."""
    assert host.call(ALL_DONE + hidden_for_a_while("$attempt/marks")) == 0
    assert (host.host()["signal"], host.run.finished_json.exists()) == ("", True)
    host.run.finished_json.unlink()
    (host.run.attempt(0).marks / "finished").unlink()
    late(host).script.write_text(host.script.read_text().replace("cctl_late=6", "cctl_late=1"))
    hidden = hidden_for_a_while("$CLUSTERCTL_RUN_DIR/checkpoints")
    assert host.call(ONE_KILLED + CHECKPOINT + hidden + "exit 137") == 137
    assert host.requeues == ["requeue 12"]


def test_any_number_of_ranks_is_counted(tmp_path: Path) -> None:
    """Their names exceed a command line: with an ARG_MAX of 2 MiB, from about 10,000 ranks on."""
    host = Host(tmp_path, nodes=2500, tasks_per_node=8)
    mark = 'for r in {00000..19999}; do : >"$attempt/marks/$r.done"; done\n'
    assert host.call(mark + 'rm "$attempt/marks/19999.done"') == 1
    assert host.call(mark + 'rm "$attempt/marks/19999.done"; : >"$attempt/marks/19999.running"; exit 137') == 137
    assert host.host(1)["refused"] == Refusal.NO_PROGRESS
    assert host.call(mark) == 0
    assert host.run.finished_json.exists()


def test_functions_and_options_of_the_submitters_shell_have_no_effect(host: Host, tmp_path: Path) -> None:
    called = tmp_path / "called"
    host.environment = hostile_shell(
        called, "shell.sh", "warm.sh", "spares.sh", "work.sh", "successor.sh", "leave_out.sh", "batch.sh"
    )
    assert {f"BASH_FUNC_{command}%%" for command in ("mv", "mkdir", "srun", "printf", "[")} <= set(host.environment)
    assert host.call(asks(host, 0) + ALL_DONE) == EXIT_RESTART
    assert host.call(ALL_DONE) == 0
    assert not called.exists()
    assert host.run.finished_json.exists()
    assert host.requeues == ["requeue 12"]


def test_functions_that_setup_lines_call_are_kept(tmp_path: Path) -> None:
    host = Host(tmp_path, cluster=Cluster(name="c", setup=("module load cuda",)))
    host.environment = {"BASH_FUNC_module%%": '() { echo "loads $2"; }'}
    host.call(ALL_DONE)
    assert host.run.attempt(0).host_log.read_text() == "loads cuda\n"


def own_names(script: str) -> tuple[set[str], set[str]]:
    """The variables and functions of a script."""
    shell = re.sub(r"(?ms)^\w+=(\(.*?\)$|'.*?'$)", lambda found: found[0].partition("=")[0] + "=", script)
    shell = re.sub(r"(?m)(^| )#.*", "", shell)
    assigned = re.findall(r"(?:^|[\s;({'])([a-z_]\w*)(?:\[[^]]*\])?\+?=", shell)
    assigned += re.findall(r"(?m)^\s*(?:for|printf -v|coproc|until) ([a-z_]\w*)", shell)
    for names in re.findall(r"(?m)^\s*local ([^\n;]*)", shell):
        assigned += re.findall(r"(?:^| )([a-z_]\w*)", names)
    return set(assigned), set(re.findall(r"(?m)^\s*([a-z_]\w*)\(\)", shell))


def test_setup_lines_may_use_any_name_of_their_own(tmp_path: Path) -> None:
    """Variables, functions and options of `setup` do not reach the script, whose own names all carry a prefix."""
    variables, functions = own_names(Host(tmp_path / "a").script.read_text())
    warm = [found | more for found, more in zip(own_names(part("warm.sh")), own_names(part("spares.sh")), strict=True)]
    assert {"cctl_attempt", "cctl_try", "cctl_signal"} <= variables
    assert {"cctl_look", "cctl_with_retries"} <= functions
    assert {name for name in variables | functions | warm[0] | warm[1] if not name.startswith("cctl_")} == set()
    taken = sorted(name.removeprefix("cctl_") for name in variables | functions | warm[0] | warm[1])
    words = sorted(
        set(re.findall(r"[a-z]{2,}", part("batch.sh") + part("work.sh") + part("successor.sh") + part("leave_out.sh")))
        - {"builtin", "srun", "time"}
    )
    commands = [word for word in words if shutil.which(word) or word in ("exit", "local", "printf", "return", "wait")]
    setup = [
        *(f"export {name}=mine" for name in taken if name not in ("code", "try")),
        "readonly code=mine try=mine",
        *(f"{name}() {{ echo hidden >>{quote(str(tmp_path / 'hidden'))}; }}" for name in (*taken, *commands)),
        "shopt -s expand_aliases nullglob dotglob nocasematch",
        "alias mv=false touch=false scontrol=false timeout=false",
        "trap : TERM",
        "set -- a b; cd /; IFS=/; set -u -f",
    ]
    host = Host(tmp_path / "b", cluster=Cluster(name="c", setup=tuple(setup)))
    assert host.call(asks(host, 0) + ALL_DONE) == EXIT_RESTART
    assert host.requeues == ["requeue 12"]
    assert host.call(CHECKPOINT + 'kill -TERM $PPID; [ "$number$task" = minemine ] || exit 3\n' + ALL_DONE) == 0
    assert host.host(1)["signal"] == "TERM"
    assert host.run.finished_json.exists()
    assert not (tmp_path / "hidden").exists()


def with_setup(folder: Path, *lines: str) -> Host:
    (folder / "returns-1").write_text("false\n")
    (folder / "exits-4").write_text("exit 4\n")
    place = quote(str(folder))
    return Host(folder, cluster=Cluster(name="c", setup=tuple(line.replace("HERE", place) for line in lines)))


@pytest.mark.parametrize(
    ("lines", "number", "code"),
    [
        (["true", "source HERE/missing/bin/activate"], 2, 1),
        ([". HERE/missing env >/dev/null 2>&1"], 1, 1),
        (["source no-such-file-on-path"], 1, 1),
        (["module load cuda/99"], 1, 127),
        (["module() { return 1; }", "module purge", "module load cuda"], 3, 1),
        (["conda() { return 1; }", "conda activate x"], 2, 1),
        (["conda activate x"], 1, 127),
        (["module load a && export A=1", "true"], 1, 127),
        (["if true; then", "  source HERE/missing && true", "fi"], 2, 1),
        (["exit 1"], 1, 1),
        (["true", "exit 0"], 2, 1),
        (["source HERE/exits-4"], 1, 4),
        (["f() {", "  exit 6", "}", "f"], 4, 6),
        (["set -e", "true", "false", "true"], 3, 1),
        (["true", "set -u", 'echo "$NO_SUCH_VARIABLE"'], 3, 1),
        (["echo one", "echo 'never closed"], 0, 2),
    ],
)
def test_a_setup_line_after_which_nothing_can_be_right_ends_the_attempt(
    tmp_path: Path, lines: list[str], number: int, code: int
) -> None:
    host = with_setup(tmp_path, *lines)
    assert host.call("touch $CLUSTERCTL_RUN_DIR/started") == code
    record = host.host()
    assert (record["setup_ended"], record["exit_code"], record["signal"]) == (number, code, "")
    assert record["end"] >= record["start"]
    assert not (host.run.path / "started").exists()


@pytest.mark.parametrize(
    ("lines", "flaws"),
    [
        (["source HERE/returns-1", "[ -f /missing ] && source /missing", "type ml || true"], []),
        (["module load a || true", "module load a || module load b || conda activate c || echo none"], []),
        (["if ! module load a; then", "  echo none", "fi"], []),
        (["export A=1", "no-such-command"], [(2, 127)]),
        (["false", "f() {", "  false", "}", "f", "a=$(exit 6)"], [(1, 1), (5, 1), (6, 6)]),
        (["for i in 1 2 3; do", "  (exit 3)", "done", "cat <<END", "exit $HOME", "END"], [(2, 3)]),
        (["module() { return 1; }", "module list"], [(2, 1)]),
        (["ulimit -n 64", "declare -A M=([a]=1)", "echo \\"], []),
    ],
)
def test_other_failures_of_setup_lines_are_recorded(
    tmp_path: Path, lines: list[str], flaws: list[tuple[int, int]]
) -> None:
    host = with_setup(tmp_path, *lines)
    assert host.call('cp "$attempt/host.json" "$CLUSTERCTL_RUN_DIR/seen"\n' + ALL_DONE) == 0
    for record in (host.host(), json.loads((host.run.path / "seen").read_text())):
        assert [(one["line"], one["code"]) for one in record.get("setup", [])] == flaws
        assert "setup_ended" not in record


def test_the_traps_of_setup_are_the_users_afterwards(tmp_path: Path) -> None:
    """Those that watch the lines are gone, and one of the user's own is kept."""
    lines = ["trap 'echo leaving >>HERE/left' EXIT", "export A=1"]
    host = with_setup(tmp_path, *lines)
    host.scontrol = "exit 0"
    assert host.call(ALL_DONE) == 0
    assert (tmp_path / "left").read_text() == "leaving\n"
    assert host.host().get("setup") is None


def test_the_exit_code_is_passed_on_and_the_next_attempt_has_its_own_folder(host: Host) -> None:
    assert host.call("echo first\nexit 3") == 3
    assert host.call(f"echo second\n{ALL_DONE}") == 0
    assert [host.host(number)["exit_code"] for number in (0, 1)] == [3, 0]
    assert [host.run.attempt(number).host_log.read_text() for number in (0, 1)] == ["first\n", "second\n"]


def test_a_finished_run_is_not_run_again(host: Host) -> None:
    assert host.call(ALL_DONE) == 0
    assert host.call("exit 9") == 0
    assert len(host.run.attempts()) == 1


def test_sigterm_is_recorded_and_the_script_waits_for_srun(host: Host) -> None:
    process = host.start('touch "$attempt/up"; sleep 0.5; exit 143')
    while not (host.run.attempt(0).path / "up").exists():
        assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    process.communicate()
    assert process.returncode == 143
    assert (host.host()["exit_code"], host.host()["signal"]) == (143, "TERM")


def test_sigterm_that_reaches_the_script_after_the_tasks_is_recorded(host: Host) -> None:
    process = host.start('touch "$attempt/marks/00000.ended" "$attempt/marks/00001.ended"; exit 143')
    wait_until((host.run.attempt(0).path / "marks" / "00001.ended").exists)
    time.sleep(1)
    process.send_signal(signal.SIGTERM)
    process.communicate()
    assert (host.host()["exit_code"], host.host()["signal"]) == (143, "TERM")


def test_files_of_an_attempt_are_private(host: Host) -> None:
    host.call(ALL_DONE)
    attempt = host.run.attempt(0)
    assert [path.stat().st_mode & 0o077 for path in (attempt.path, attempt.host_json, attempt.host_log)] == [0, 0, 0]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
@pytest.mark.parametrize("part", [".", "code", "code/lib", "attempts"])
def test_code_in_another_users_folder_is_not_loaded(host: Host, part: str) -> None:
    os.chown(host.run.path / part, 65534, 65534)
    process = host.start(ALL_DONE)
    _, errors = process.communicate()
    assert process.returncode == 77
    assert b"not owned by this user" in errors
    assert host.run.attempts() == []


@pytest.mark.parametrize("part", [".", "code"])
def test_code_that_others_may_replace_is_not_loaded(host: Host, part: str) -> None:
    (host.run.path / part).chmod(0o770)
    process = host.start(ALL_DONE)
    _, errors = process.communicate()
    assert (process.returncode, host.run.attempts()) == (77, [])
    assert b"writable by others" in errors


def test_attempts_are_not_written_through_a_link(host: Host, tmp_path: Path) -> None:
    host.run.attempts_folder.rename(tmp_path / "elsewhere")
    host.run.attempts_folder.symlink_to(tmp_path / "elsewhere")
    process = host.start(ALL_DONE)
    process.communicate()
    assert (process.returncode, list((tmp_path / "elsewhere").iterdir())) == (77, [])


@pytest.mark.parametrize("part", ["code", "run.json"])
def test_files_removed_while_the_run_was_queued_are_reported(host: Host, part: str) -> None:
    (host.run.path / part).rename(host.run.path / "moved")
    process = host.start(ALL_DONE)
    _, errors = process.communicate()
    assert process.returncode == 66
    found = known_line(errors.decode().splitlines())
    assert found is not None
    assert (found.cause_class, found.attempt) == (Cause.LAUNCH, None)
    assert f"removed since submission: {host.run.path / part}" in found.cause
    assert "submit the job again" in found.cause
    assert host.run.attempts() == []


def test_an_unwritable_run_folder_is_reported(host: Host) -> None:
    host.run.attempts_folder.rmdir()
    process = host.start(ALL_DONE)
    _, errors = process.communicate()
    assert process.returncode == 73
    assert b"cannot write to" in errors


def test_a_restart_request_requeues_the_job(host: Host) -> None:
    assert (
        host.call(asks(host, 0, step=3) + "exit 143") == EXIT_RESTART
    )  # srun returns the highest exit code of all ranks
    assert host.requeues == ["requeue 12"]
    assert (host.host()["requeued"], host.host()["exit_code"]) == (True, 75)


def test_a_restart_request_requeues_the_job_even_if_every_rank_exits_0(host: Host) -> None:
    assert host.call(asks(host, 0) + ALL_DONE) == 75
    assert host.requeues == ["requeue 12"]
    assert not host.run.finished_json.exists()


def test_a_request_of_an_earlier_attempt_is_ignored(host: Host) -> None:
    host.call(asks(host, 0))
    assert host.call("exit 1") == 1
    assert host.requeues == ["requeue 12"]
    assert "requeued" not in host.host(1)


@pytest.mark.parametrize(
    ("before", "restarts", "why"),
    [
        ("", 20, Refusal.RESTART_LIMIT),
        ('echo "{}" >"$CLUSTERCTL_RUN_DIR/cancel.json"\n', 0, Refusal.CANCELLED),
        (NEWER, 0, Refusal.SUPERSEDED),
    ],
)
def test_a_restart_is_refused_at_the_limit_or_if_cancelled_or_superseded(
    host: Host, before: str, restarts: int, why: Refusal
) -> None:
    assert host.call(before + asks(host, 0), restarts) == 75
    assert host.requeues == []
    assert (host.host()["refused"], host.host().get("requeued")) == (why, None)
    assert f"not started again: {why}" in host.run.attempt(0).host_log.read_text()


def test_a_restart_is_refused_without_progress_since_the_last_attempt(host: Host) -> None:
    host.call(asks(host, 0, step=3))
    host.call(asks(host, 1, step=3))
    assert host.requeues == ["requeue 12"]
    assert host.host(1)["refused"] == Refusal.NO_PROGRESS


REFUSES = 'echo "Requested operation is presently disabled for job 12" >&2; exit 1'
AWAY = "slurm_requeue error: Unable to contact slurm controller (connect failure)"
PENDING = "Job is pending execution for job 12"


def test_a_requeue_that_slurm_refuses_is_recorded_as_refused(host: Host) -> None:
    host.scontrol = REFUSES
    assert host.call(asks(host, 0)) == 75
    assert host.requeues == ["requeue 12"]
    assert (host.host()["refused"], host.host().get("requeued")) == (Refusal.REQUEUE_FAILED, None)
    assert "presently disabled" in host.run.attempt(0).host_log.read_text()


def test_an_unreachable_controller_is_retried(host: Host) -> None:
    sleep = host.srun.with_name("sleep")
    sleep.write_text(f'#!/bin/bash\necho "sleeps $1" >>{quote(str(host.asked))}\n')
    sleep.chmod(0o755)
    host.scontrol = f'[ "$(grep -c requeue {quote(str(host.asked))})" -eq 4 ] || {{ echo "{AWAY}" >&2; exit 1; }}'
    assert host.call(asks(host, 0)) == 75
    assert host.asked.read_text().splitlines()[1:] == [*["requeue 12", "sleeps 10"] * 3, "requeue 12"]
    assert (host.host()["requeued"], host.host().get("refused")) == (True, None)
    host.scontrol = f'echo "{AWAY}" >&2; exit 1'
    host.asked.unlink()
    assert host.call(asks(host, 1)) == 75
    assert host.asked.read_text().count("sleeps 10") == 60
    assert host.host(1)["refused"] == Refusal.REQUEUE_FAILED


def test_a_superseded_script_does_not_requeue_its_successor(host: Host) -> None:
    host.scontrol = (
        f'CLUSTERCTL_RUN_DIR={quote(str(host.run.path))}\n[ "$1" = show ] || {NEWER}echo "{AWAY}" >&2; exit 1'
    )
    sleep = host.srun.with_name("sleep")
    sleep.write_text("#!/bin/bash\n")
    sleep.chmod(0o755)
    assert host.call(asks(host, 0)) == 75
    assert host.requeues == ["requeue 12"]
    assert host.host()["refused"] == Refusal.SUPERSEDED


def test_an_empty_folder_that_somebody_made_is_no_newer_attempt(host: Host) -> None:
    copied = 'cp -r "$CLUSTERCTL_RUN_DIR/attempts/0" "$CLUSTERCTL_RUN_DIR/attempts/2"\n'
    assert host.call('mkdir "$CLUSTERCTL_RUN_DIR/attempts/1"\n' + copied + ALL_DONE) == 0
    assert json.loads(host.run.finished_json.read_text())["attempt"] == 0
    host.steps.unlink()
    assert host.call("exit 1") == 0, "started again, although the run has finished"
    assert not host.steps.exists()


def test_a_run_counts_as_requeued_only_once_slurm_has_agreed(host: Host) -> None:
    seen = host.run.path / "seen"
    keep = f'[ "$1" = show ] || cat {quote(str(host.run.attempts_folder))}/0/host.json >>{quote(str(seen))}'
    sleep = host.srun.with_name("sleep")
    sleep.write_text("#!/bin/bash\n")
    sleep.chmod(0o755)
    words = 'slurm_load_jobs error: Unable to contact "slurm" controller\\nsecond line'
    host.scontrol = f'{keep}\n[ "$(wc -l <{quote(str(seen))})" -gt 1 ] || {{ printf {quote(words)} >&2; exit 1; }}'
    assert host.call(asks(host, 0)) == 75
    first, second = (json.loads(line) for line in seen.read_text().splitlines())
    assert [(one.get("requeuing"), one.get("requeued")) for one in (first, second)] == [(True, None)] * 2
    assert [one.get("requeue_problem") for one in (first, second)] == [
        None,
        words.replace('"', "'").partition("\\n")[0],
    ]
    record = host.host()
    assert (record.get("requeuing"), record["requeued"], record["asked"]) == (None, True, True)


def test_without_scontrol_the_run_ends_at_once_and_the_reason_is_recorded(host: Host) -> None:
    host.scontrol = 'echo "bash: line 1: scontrol: command not found" >&2; exit 127'
    assert host.call(asks(host, 0)) == 75
    assert len(host.requeues) == 1
    record = host.host()
    assert (record["refused"], record.get("requeuing"), record.get("requeued")) == ("requeue-failed", None, None)
    assert record["requeue_problem"] == "bash: line 1: scontrol: command not found"


def test_the_time_limit_at_the_end_is_recorded_for_a_run_that_left_on_request(host: Host) -> None:
    host.scontrol = 'printf "JobId=12 JobName=x\n   RunTime=00:00:03 TimeLimit=1-00:20:00 TimeMin=N/A\n"'
    assert host.call(asks(host, 0)) == 75
    assert host.host()["limit"] == "1-00:20:00"
    assert read_host(host.run.attempt(0)).limit == 87_600
    host.call("exit 75", restarts=1)
    own = read_host(host.run.attempt(1))
    assert (own.exit_code, own.asked, own.limit) == (75, False, None), "75 without a request is the program's own code"


def test_what_earlier_attempts_left_is_ended_before_the_next_one_and_after_a_failure(host: Host) -> None:
    assert host.call("exit 3") == 3
    assert host.call(f"cp {quote(str(host.ends))} {quote(str(host.run.path))}/before\n" + ALL_DONE) == 0
    assert (host.run.path / "before").read_text().split() == ["1", "1"]  # of the first attempt's end, and the next
    assert host.ends.read_text().split() == ["1", "1"]  # none after success


def test_successive_starts_give_their_ranks_different_step_numbers(host: Host) -> None:
    ranks = []
    for restarts in range(3):
        assert host.call("exit 1", restarts) == 1
        ranks.append([step == "true" for step in host.steps.read_text().splitlines()].index(False))
        host.steps.unlink()
    assert ranks == [0, 1, 0]


def test_a_job_that_slurm_already_requeued_counts_as_requeued(host: Host) -> None:
    """After a preemption, or if the answer to the first request was lost."""
    host.scontrol = f'echo "{PENDING}" >&2; exit 1'
    assert host.call(asks(host, 0)) == 75
    assert (host.host()["requeued"], host.host().get("refused")) == (True, None)


def test_sigterm_does_not_interrupt_the_requeue(host: Host) -> None:
    host.scontrol = "kill -TERM $PPID $$; sleep 0.2"
    assert host.call(asks(host, 0)) == 75
    assert (host.host()["requeued"], host.host().get("refused")) == (True, None)


UNPACKING = 'echo "slurmstepd: error: pyxis: child 4145 terminated with signal 12" >&2\n'
TERM = "kill -TERM $PPID\n"


@pytest.mark.parametrize(
    ("srun", "state", "again"),
    [
        (UNPACKING, "RUNNING", True),  # the warning signal
        (TERM, "RUNNING", True),  # the grace period of a preemption
        (TERM, "CANCELLED", False),
        (TERM, "TIMEOUT", False),
        (UNPACKING.replace("12", "9"), "RUNNING", False),
        (UNPACKING + 'touch "$attempt/marks/00000.ended"\n', "RUNNING", False),
        ("", "RUNNING", False),
    ],
)
def test_a_start_ended_by_a_warning_or_preemption_before_any_rank_is_requeued(
    host: Host, srun: str, state: str, again: bool
) -> None:
    host.scontrol = f'[ "$1" = show ] && echo "JobId=12 JobName=x\n   JobState={state} Reason=None"'
    host.scontrol += "\nexit 0"
    assert host.call(srun + "sleep 0.1; exit 1") == 1
    assert host.requeues == ["requeue 12"] * again
    assert host.host().get("requeued", False) is again


def test_a_start_ended_by_a_warning_counts_towards_the_restart_limit(host: Host) -> None:
    assert host.call(UNPACKING + "exit 1", restarts=20) == 1
    assert host.host()["refused"] == Refusal.RESTART_LIMIT


def test_a_run_with_all_ranks_done_is_finished_whatever_srun_returns(host: Host) -> None:
    """As when the kernel killed a child process of a rank."""
    assert host.call(ALL_DONE + "exit 125") == 0
    assert host.run.finished_json.exists()


def test_a_killed_srun_is_recognized_by_bashs_message(host: Host) -> None:
    assert host.call("kill -KILL $$") == 137
    ending = job_ending(attempt(lines=host.run.attempt(0).host_log.read_text()))
    assert ending is not None
    assert ending.cause is Cause.KILLED


def test_the_scripts_refusals_are_those_of_the_enum() -> None:
    script = part("batch.sh")
    refusal = script[script.index("cctl_refusal() {") : script.index("# Slurm may be unreachable")]
    named = re.findall(r"then echo ([a-z-]+)", refusal) + re.findall(r"cctl_refused=([a-z-]+)", script)
    named += [f"no-more-{what}" for what in re.findall(r"cctl_short=(memory|time)\b", part("grow.sh"))]
    assert {*named} == {*Refusal}


def test_a_killed_rank_is_requeued_if_there_is_a_new_checkpoint(host: Host) -> None:
    assert host.call(ONE_KILLED + CHECKPOINT + "exit 137") == 137
    assert host.requeues == ["requeue 12"]
    assert host.call(ONE_KILLED + "exit 137") == 137
    assert host.requeues == ["requeue 12"]


@pytest.fixture
def staying(tmp_path: Path) -> Host:
    """Restarts happen within the job, as by default."""
    return Host(tmp_path, restart=Restart())


BEFORE_2 = '[ "$CLUSTERCTL_ATTEMPT" -ge 2 ] || {{\n{}exit 137\n}}\n' + ALL_DONE
HUNG = 'printf \'{"attempt": %d, "reason": "hang"}\' "$CLUSTERCTL_ATTEMPT" >"$CLUSTERCTL_RUN_DIR/requeue.json"\n'
HUNG = HUNG.replace("%d,", "%d,\\n") + 'touch "$attempt/marks/restart"\n'


@pytest.mark.parametrize("how", [ONE_KILLED, HUNG], ids=["killed", "hung"])
def test_tasks_start_again_at_once_on_the_same_nodes(staying: Host, how: str) -> None:
    keep = 'env >"$attempt/environment"; pwd >>"$attempt/environment"\n'
    staying.environment = {"OF_USER": "a\nb", "BASH_FUNC_module%%": "() { :; }"}
    assert staying.call(keep + BEFORE_2.format(how)) == 0
    assert [attempt.number for attempt in staying.run.attempts()] == [0, 1, 2]
    assert staying.requeues == []
    assert [read_host(staying.run.attempt(number)).restarting for number in range(3)] == [True, True, False]
    first, second, third = (of_attempt(staying, number) for number in range(3))
    assert first == second == third
    assert not any(name.startswith("cctl") for name in first)


def test_tasks_do_not_start_again_on_a_full_disk(staying: Host) -> None:
    """The next attempt could not record anything."""
    assert staying.call('mkdir "$attempt/.room"\n' + ONE_KILLED + CHECKPOINT + "exit 137") == 137
    assert [attempt.number for attempt in staying.run.attempts()] == [0]
    assert staying.host()["disk_full"] is True


def test_an_attempt_without_a_secret_does_not_begin(host: Host) -> None:
    od = host.srun.with_name("od")
    od.write_text("#!/bin/bash\necho 'od: write error: No space left on device' >&2; exit 1\n")
    od.chmod(0o755)
    process = host.start(ALL_DONE)
    _, errors = process.communicate()
    assert process.returncode == 73
    assert f"cannot write to {host.run.attempt(0).path}: is the disk full?" in errors.decode()


def test_a_restart_in_the_job_is_notified_while_the_next_attempt_runs(staying: Host) -> None:
    """The notifier must not look like a process of the attempt that has ended, which is killed."""
    sent = staying.run.path / "sent"
    notifier = f"(sh -c {quote(f'sleep 1; env >>{quote(str(sent))}')})"
    staying.script.write_text(staying.script.read_text().replace("cctl_notifier=()", f"cctl_notifier={notifier}"))
    assert staying.call(BEFORE_2.format(ONE_KILLED)) == 0
    wait_until(lambda: sent.read_text().count("CLUSTERCTL_RUN_DIR=") == 3, what="two restarts and the end")
    assert "CLUSTERCTL_ATTEMPT=" not in sent.read_text()


def test_every_step_shares_what_the_job_has_and_names_its_nodes_and_tasks(tmp_path: Path) -> None:
    """Also in the restarts, and whatever `setup` does to Slurm's variables."""
    names = ("SLURM_JOB_NODELIST", "SLURM_NODELIST", "SLURM_JOB_NUM_NODES", "SLURM_NNODES", "SLURM_NTASKS_PER_NODE")
    setup = f"export {' '.join(f'{name}=7' for name in names)}"
    host = Host(tmp_path, nodes=2, tasks_per_node=1, cluster=Cluster(name="c", setup=(setup,)), restart=Restart())
    host.environment = {"SLURM_JOB_NUM_NODES": "2"}
    with_standby(host)
    seen = host.run.path / "seen"
    seen.mkdir()
    host.script.write_text(host.script.read_text().replace("cctl_closing=()", "cctl_closing=(echo closing)"))
    values = " ".join(f"${name}" for name in names[:4])
    # A file for each: bash writes a line at a time, so steps that start together would mix their words in one file.
    show = f'printf "%s\\0" "{values}" "$@" >{quote(str(seen))}/$$\n'
    assert host.call(show + STANDBY + BEFORE_2.format(ONE_KILLED)) == 0
    steps = [file.read_text().split("\0")[:-1] for file in seen.iterdir()]
    assert len(steps) == 5, "a standby, three attempts of the ranks, and the end on each node"
    for variables, *words in steps:
        flags = [word for word in words if word.startswith(("--overlap", "--mem", "--node", "--ntasks"))]
        assert sorted({*flags}) == [
            "--mem=0", "--nodelist=n[1-2]", "--nodes=2", "--ntasks-per-node=1", "--ntasks=2", "--overlap"
        ]  # fmt: skip
        assert variables == "n[1-2] n[1-2] 2 2"


STANDBY = """
if [ "${!#}" = standby ]; then
  echo "$$ $CLUSTERCTL_STANDBY ${CLUSTERCTL_ATTEMPT-none} $*" >>"$CLUSTERCTL_RUN_DIR/standbys"
  exec sleep 60
fi
until grep -qs " $CLUSTERCTL_STANDBY " "$CLUSTERCTL_RUN_DIR/standbys"; do sleep 0.01; done
echo "$CLUSTERCTL_STANDBY" >>"$CLUSTERCTL_RUN_DIR/names"
"""


def with_standby(host: Host) -> Host:
    script = host.script.read_text()
    assert script.count("cctl_standby=()") == 1
    host.script.write_text(script.replace("cctl_standby=()", "cctl_standby=(--overlap --mem=0)"))
    return host


@pytest.mark.parametrize("survives", [True, False], ids=["survives", "killed"])
def test_the_standbys_stay_over_restarts_in_the_job(staying: Host, survives: bool) -> None:
    kill = """pid=$(tail -n1 "$CLUSTERCTL_RUN_DIR/standbys" | cut -d" " -f1)
        kill "$pid"
        while [ -e "/proc/$pid/exe" ]; do :; done
    """
    kill = "" if survives else kill
    assert with_standby(staying).call(STANDBY + kill + BEFORE_2.format(ONE_KILLED)) == 0
    standbys = [line.split(" ") for line in (staying.run.path / "standbys").read_text().splitlines()]
    names = (staying.run.path / "names").read_text().splitlines()
    assert len(standbys) == (1 if survives else 3)
    assert [name for _, name, *_ in standbys] == list(dict.fromkeys(names))
    for pid, name, number, *words in standbys:
        assert number == "none", "or the next attempt ends it with what the last one left"
        assert re.fullmatch(r"12\.\d+", name)
        assert {"--ntasks-per-node=1", "--overlap", "--mem=0"} <= set(words[: words.index("sh")])
        wait_until(lambda pid=pid: not os.path.exists(f"/proc/{pid}"))  # type: ignore[misc]  # noqa: PTH110


@pytest.mark.parametrize("end", [ALL_DONE, ONE_KILLED + CHECKPOINT + "exit 137", "exit 1"])
def test_the_standbys_end_with_the_job(host: Host, end: str) -> None:
    with_standby(host).call(STANDBY + end)
    pid = (host.run.path / "standbys").read_text().split()[0]
    wait_until(lambda: not os.path.exists(f"/proc/{pid}"))  # noqa: PTH110


def test_an_image_is_removed_when_its_standbys_have_ended(host: Host) -> None:
    """Its tree stays while anything runs in it."""
    with_standby(host)
    used, seen = host.run.path / "used", host.run.path / "seen"
    host.script.write_text(host.script.read_text().replace("cctl_closing=()", "cctl_closing=(removing)"))
    paths = f"used={quote(str(used))} seen={quote(str(seen))}\n"
    closing = '[ "${!#}" != removing ] || { ls -d "$used"* >"$seen"; exit 0; }\n'
    slow = """trap 'sleep 0.7; rm "$used"; exit' TERM; touch "$used"; sleep 60 & wait"""
    assert host.call(paths + closing + STANDBY.replace("exec sleep 60", slow) + ALL_DONE) == 0
    assert seen.read_text() == ""


@pytest.mark.parametrize("in_image", [False, True])
def test_what_an_attempt_in_an_image_has_left_is_ended_from_the_host(staying: Host, in_image: bool) -> None:
    """A standby in an image may not see all of it."""
    script = with_standby(staying).script.read_text()
    assert script.count("\ncctl_python=python ") == 1
    if in_image:
        staying.script.write_text(script.replace("\ncctl_python=python ", "\ncctl_python= "))
    assert staying.call(STANDBY + BEFORE_2.format(ONE_KILLED)) == 0
    assert (staying.ends.read_text().split() if staying.ends.exists() else []) == (["1", "2"] if in_image else [])


def test_a_killed_ranks_peers_had_their_term_from_srun(staying: Host) -> None:
    """Otherwise the script waits for the one that a cancellation would send to it, too."""
    sleep, slept = staying.srun.with_name("sleep"), staying.run.path / "slept"
    sleep.write_text(f"#!/bin/bash\necho >>{quote(str(slept))}\n")
    sleep.chmod(0o755)
    assert staying.call(BEFORE_2.format(ONE_KILLED).replace("exit 137", "exit 143")) == 0
    assert not slept.exists()
    staying.run.finished_json.unlink()
    (staying.run.attempt(2).path / "marks" / "finished").unlink()
    staying.call(ALL_DONE.replace('done"', 'ended"') + "exit 143")
    assert slept.exists()


def of_attempt(host: Host, number: int) -> dict[str, str]:
    """The environment of an attempt's tasks, but for what differs by intention."""
    text = (host.run.attempt(number).path / "environment").read_text()
    return {line.partition("=")[0]: line for line in text.splitlines() if "CLUSTERCTL_ATTEMPT=" not in line}


STEP = 'echo "{\\"loss\\": 1.0, \\"step\\": $((CLUSTERCTL_ATTEMPT / 2)), \\"x\\": 1}" >"$attempt/metrics.jsonl"\n'
SAVED = 'mkdir -p "$CLUSTERCTL_RUN_DIR/checkpoints/$CLUSTERCTL_ATTEMPT-$((CLUSTERCTL_ATTEMPT / 2))"\n'
TEN = '[ "$CLUSTERCTL_ATTEMPT" -lt 10 ] || { ' + ALL_DONE.strip() + "; exit 0; }\n"


@pytest.mark.parametrize("progress", [STEP, SAVED], ids=["logged", "saved"])
def test_restarts_go_on_while_there_is_progress_at_least_now_and_then(staying: Host, progress: str) -> None:
    assert staying.call(TEN + progress + ONE_KILLED + "exit 137") == 0
    assert len(staying.run.attempts()) == 11


@pytest.mark.parametrize("progress", ["", STEP.replace("/ 2", "* 0"), SAVED.replace("/ 2", "* 0"), "mkdir -p x-y\n"])
def test_restarts_without_progress_end_the_run(staying: Host, progress: str) -> None:
    assert staying.call(progress + ONE_KILLED + "exit 137") == 137
    starts = 3 if "metrics" in progress else 5 if "checkpoints" in progress else 4
    assert len(staying.run.attempts()) == starts
    if "checkpoints" not in progress:  # otherwise it goes back to the queue, as before
        refused = Refusal.KILLED_AGAIN if "metrics" in progress else Refusal.NO_PROGRESS
        assert staying.host(starts - 1)["refused"] == refused


def test_a_restart_that_does_not_begin_on_these_nodes_goes_through_the_queue(staying: Host) -> None:
    assert staying.call(f'[ "$CLUSTERCTL_ATTEMPT" = 0 ] || exit 1\n{ONE_KILLED}exit 137') == 1
    assert staying.requeues == ["requeue 12"]
    assert len(staying.run.attempts()) == 2


@pytest.mark.parametrize("mark", ["", 'touch "$attempt/marks/00001.ended"\n'], ids=["none", "of-another"])
@pytest.mark.parametrize(("how", "again"), [("Killed", True), ("Exited with exit code 1", False)])
def test_a_rank_may_be_killed_before_it_leaves_a_mark(staying: Host, mark: str, how: str, again: bool) -> None:
    said = f'{mark}echo "srun: error: n1: task 0: {how}" >&2\necho "srun: error: n2: task 1: Killed" >&2\n'
    done = 'rm -f "$attempt"/marks/*.ended\n' + ALL_DONE
    code = staying.call(BEFORE_2.format(said).replace(ALL_DONE, done))
    assert (code, len(staying.run.attempts())) == ((0, 3) if again else (137, 1))


@pytest.mark.parametrize(
    ("marks", "again"),
    [("cut cut", True), ("term cut", True), ("cut ended", False), ("cut done", False), ("term term", False)],
)
def test_ranks_that_have_all_lost_their_connections_start_again(staying: Host, marks: str, again: bool) -> None:
    first, second = marks.split()
    lost = f'touch "$attempt/marks/00000.{first}" "$attempt/marks/00001.{second}"\n'
    assert (staying.call(BEFORE_2.format(lost).replace("exit 137", "exit 1")) == 0) == again
    assert len(staying.run.attempts()) == (3 if again else 1)
    assert staying.requeues == []


EXCLUDED = 'case "$*" in "show job"*) echo "JobState=RUNNING ReqNodeList=(null) ExcNodeList={}" ;; esac'


@pytest.mark.parametrize(
    ("marks", "before", "excluded"),
    [
        ("n2.broken term", "(null)", "n2"),
        ("n2.broken cut", "n[7-8]", "n[7-8],n2"),
        ("n1.broken n-2.x.broken", "(null)", "n1,n-2.x"),
        ("n2.broken ended", "(null)", None),  # another rank failed by itself
        ("n2.broken done", "(null)", "n2"),
    ],
)
def test_the_node_of_a_broken_gpu_is_excluded_from_the_next_start(
    staying: Host, marks: str, before: str, excluded: str | None
) -> None:
    """Also from a first start that saved nothing: only the number of starts limits that."""
    first, second = marks.split()
    staying.scontrol = EXCLUDED.format(before)
    staying.call(f'touch "$attempt/marks/00000.{first}" "$attempt/marks/00001.{second}"; exit 1')
    updates = [line for line in staying.asked.read_text().splitlines() if line.startswith("update")]
    assert staying.requeues == ([] if excluded is None else ["requeue 12"])
    assert updates == ([] if excluded is None else [f"update JobId=12 ExcNodeList={excluded}"])
    assert len(staying.run.attempts()) == 1
    recorded = [one.node for one in read_host(staying.run.attempt(0)).excluded]
    assert recorded == ([] if excluded is None else excluded.removeprefix("n[7-8],").split(","))


@pytest.mark.parametrize(("before", "excluded"), [("(null)", "n2,n5"), ("n[7-8]", "n[7-8],n2,n5")])
def test_nodes_that_fail_their_check_are_excluded_beside_those_that_are_by_now(
    staying: Host, before: str, excluded: str
) -> None:
    """The user's own, and those of an earlier check: two broken nodes would take turns otherwise."""
    staying.scontrol = EXCLUDED.format(before)
    text = staying.script.read_text()
    assert "cctl_node_check=()" in text
    judge = "bash -c '[ \"$1\" != --judge ] || echo n2,n5' check"
    staying.script.write_text(text.replace("cctl_node_check=()", f"cctl_node_check=(9 {judge})"))
    assert staying.call("exit 1") == 69
    updates = [line for line in staying.asked.read_text().splitlines() if line.startswith("update")]
    assert updates == [f"update JobId=12 ExcNodeList={excluded}"]
    left_out = read_host(staying.run.attempt(0)).excluded
    assert [str(one) for one in left_out] == ["without n2: it failed its check", "without n5: it failed its check"]


def test_ranks_that_have_lost_those_that_a_cancellation_ended_do_not_start_again(staying: Host) -> None:
    """TERM may reach a task, and its end the others, before it reaches the script."""
    lost = 'touch "$attempt/marks/00000.term" "$attempt/marks/00001.cut"\n'
    script = quote(f"{staying.run.path}/slurm_script")
    late = f"(sleep 1; pkill -TERM -f {script}) >/dev/null 2>&1 &\n"
    assert staying.call(f"{lost}{late}exit 143") == 143
    assert len(staying.run.attempts()) == 1
    assert (staying.host()["signal"], "restarting" in staying.host()) == ("TERM", False)


def test_a_job_that_is_about_to_end_restarts_through_the_queue(staying: Host) -> None:
    staying.environment = {"SLURM_JOB_END_TIME": str(int(time.time()) + 30)}
    assert staying.call(CHECKPOINT + ONE_KILLED + "exit 137") == 137
    assert staying.requeues == ["requeue 12"]


YIELDS = 'if [ "$1" = show ]; then echo "   JobState=RUNNING PreemptTime=2026-01-02T03:04:05"; fi'
TOLD = 'touch "$attempt"/marks/0000{0,1}.term; exit 3'


def test_a_run_goes_on_whose_ranks_alone_learn_of_a_preemption(staying: Host) -> None:
    """In its grace time Slurm has sent the script no TERM yet; if it ended now, the job would not be requeued."""
    staying.scontrol = YIELDS
    assert staying.call(TOLD) == 3
    assert staying.requeues == ["requeue 12"]
    assert (staying.host()["signal"], staying.host()["requeued"]) == ("TERM", True)
    assert [attempt.number for attempt in staying.run.attempts()] == [0], "not on nodes that another job needs"


def test_ranks_that_somebody_else_ended_with_term_are_no_preemption(staying: Host) -> None:
    staying.scontrol = YIELDS.replace("2026-01-02T03:04:05", "None")
    assert staying.call(TOLD) == 3
    assert staying.requeues == []
    assert "refused" not in staying.host()


def test_at_the_restart_limit_the_script_leaves_the_requeue_to_slurm(staying: Host) -> None:
    staying.scontrol = YIELDS
    process = staying.start(TOLD, restarts=20)
    wait_until(lambda: staying.asked.exists() and staying.asked.read_text().count("show job") > 1, 30, "its questions")
    process.terminate()
    process.communicate()
    assert staying.requeues == []
    assert (staying.host()["signal"], staying.host().get("refused")) == ("TERM", None)


def test_what_ends_a_run_still_ends_it(staying: Host) -> None:
    cancelled = 'echo {} >"$CLUSTERCTL_RUN_DIR/cancel.json"\n'
    assert staying.call(cancelled + ONE_KILLED + "exit 137") == 137
    assert staying.host()["refused"] == Refusal.CANCELLED
    staying.run.cancel_json.unlink()
    assert staying.call(ALL_DONE.replace('done"', 'ended"') + "exit 1") == 1  # an exception
    assert len(staying.run.attempts()) == 2
    assert staying.requeues == []


# What the task of a program does that left after the warning without a request.
LEFT = 'touch "$attempt"/marks/{00000.asked,00001.asked,restart,unasked}\n'
WROTE = (
    'mkdir -p "$CLUSTERCTL_RUN_DIR/work/ckpt" && touch "$CLUSTERCTL_RUN_DIR/work/ckpt/it\'s $CLUSTERCTL_ATTEMPT.pt"\n'
)
LATER = 'echo "{\\"step\\": $((10 + CLUSTERCTL_ATTEMPT))}" >"$attempt/metrics.jsonl"\n'
SAME = LATER.replace("CLUSTERCTL_ATTEMPT", "0")


@pytest.mark.parametrize(
    ("progress", "starts"),
    [(LATER, 4), (CHECKPOINT, 4), (WROTE, 4), ("", 2), (SAME, 3), (WROTE.replace("touch", "touch -d '1 hour ago'"), 2)],
    ids=["logged", "saved", "wrote", "nothing", "logged-the-same", "wrote-before"],
)
def test_a_program_that_left_goes_on_while_there_is_a_sign_of_progress(
    tmp_path: Path, progress: str, starts: int
) -> None:
    """Without progress it is restarted only once, and host.log gives the reason."""
    host = Host(tmp_path, restart=Restart(at_limit=True, progress="ckpt/*'*.pt"))
    for start in range(starts):
        assert host.call(progress + LEFT, restarts=start) == EXIT_RESTART
    ends = starts < 4
    assert len(host.requeues) == starts - ends
    read = [read_host(host.run.attempt(start)) for start in range(starts)]
    assert all(one.unasked for one in read)
    assert [one.refused for one in read] == [None] * (starts - ends) + [Refusal.NO_PROGRESS] * ends
    assert [one.unproven for one in read] == [ends and start == starts - 2 for start in range(starts)]
    assert ("started again once" in host.run.attempt(starts - 2).host_log.read_text()) == ends


def test_files_of_the_program_are_progress_for_a_killed_rank(staying: Host, tmp_path: Path) -> None:
    staying.script.write_text(staying.script.read_text().replace("cctl_progress=''", "cctl_progress='ckpt/*'"))
    assert staying.call(TEN + WROTE + ONE_KILLED + "exit 137") == 0
    assert len(staying.run.attempts()) == 11


def test_a_killed_rank_counts_as_lost_if_slurm_refuses_the_requeue(host: Host) -> None:
    host.scontrol = REFUSES
    assert host.call(ONE_KILLED + CHECKPOINT + "exit 137") == 137
    assert (host.host()["signal"], host.host().get("requeued")) == ("LOST", None)


def test_a_run_that_raised_an_exception_is_not_requeued(host: Host) -> None:
    assert host.call(CHECKPOINT + ALL_DONE.replace('done"', 'ended"') + "exit 1") == 1
    assert host.requeues == []


def test_a_superseded_attempt_does_not_finish_the_run(host: Host) -> None:
    assert host.call(NEWER + ALL_DONE) == 0
    assert not host.run.finished_json.exists()
    host.run.finished_json.write_text('{"attempt": 0, "time": 1}\n')  # as if the check had come just before
    assert host.call(ALL_DONE) == 0
    assert json.loads(host.run.finished_json.read_text())["attempt"] == 2


def test_tasks_get_the_runs_own_writable_copy_of_the_code(host: Host) -> None:
    (host.project / "package").mkdir()
    (host.project / "package" / "a.py").write_text("1")
    (host.project / "b.sh").hardlink_to(host.project / "package" / "a.py")  # as in snapshots, to save space
    (host.project / "link").symlink_to("b.sh")
    for path, mode in (("package/a.py", 0o444), ("b.sh", 0o555), ("package", 0o555), (".", 0o555)):
        (host.project / path).chmod(mode)
    work = host.run.work
    write = f"cd {quote(str(work))} && echo 2 >>b.sh && echo 3 >package/new && touch new\n"
    assert host.call(write + ALL_DONE) == 0
    assert [(work / name).read_text() for name in ("package/a.py", "b.sh", "package/new")] == ["1", "12\n", "3\n"]
    assert (work / "link").readlink() == Path("b.sh")
    assert os.access(work / "link", os.X_OK)
    assert (work / "package" / "a.py").stat().st_mtime_ns == (host.project / "package" / "a.py").stat().st_mtime_ns
    assert (work / "package" / "a.py").stat().st_mode & 0o200
    assert not (host.project / "new").exists()
    assert (host.project / "b.sh").read_text() == "1"


def test_the_next_attempt_reuses_the_working_folder(host: Host) -> None:
    there = quote(str(host.run.work))
    (host.project / "config").write_text("as submitted")
    assert host.call(f"echo changed >{there}/config; exit 3") == 3
    assert host.call(f"[ $(cat {there}/config) = changed ] && {ALL_DONE}") == 0


def test_an_interrupted_copy_is_redone(host: Host) -> None:
    (host.project / "a.py").write_text("1")
    half = host.run.path / ".work.0"
    (half / "package").mkdir(parents=True)
    (half / "package").chmod(0o555)
    assert host.call(f"test -e {quote(str(host.run.work))}/a.py && {ALL_DONE}") == 0
    assert [path.name for path in host.run.work.iterdir()] == ["a.py"]
    assert list(host.run.path.glob(".work*")) == []


def test_without_the_code_no_task_starts_and_the_reason_is_recorded(host: Host) -> None:
    host.project.rmdir()
    assert host.call("touch $CLUSTERCTL_RUN_DIR/started") == 73
    assert (host.host()["no_work"], host.host().get("disk_full"), host.requeues) == (True, None, [])
    assert f"clusterctl: cannot create {host.run.work}: cp: " in host.run.attempt(0).host_log.read_text()
    assert not (host.run.path / "started").exists()
    assert list(host.run.path.glob("*work*")) == []


def test_a_job_ended_while_copying_the_code_starts_no_task(host: Host) -> None:
    """As at a time limit, whose SIGTERM reaches cp too."""
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
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=340k", "tmpfs", disk], check=True)
    yield disk
    subprocess.run(["umount", disk], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
def test_the_end_is_recorded_on_a_full_disk(small_disk: Path) -> None:
    host = Host(small_disk)
    assert host.call(FILL + "exit 3") == 3
    assert (host.host()["exit_code"], host.host()["disk_full"]) == (3, True)
    (host.run.path / "ballast").unlink()
    assert host.call(ALL_DONE + FILL + "exit 0") == 0
    assert (host.host(1)["exit_code"], host.host(1)["disk_full"]) == (0, True)
    assert json.loads(host.run.finished_json.read_text())["attempt"] == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
def test_a_copy_on_a_full_disk_leaves_nothing_and_succeeds_once_there_is_space(small_disk: Path) -> None:
    host = Host(small_disk)
    (host.project / "data").write_bytes(bytes(200_000))
    assert host.call(ALL_DONE) == 73
    assert (host.host()["no_work"], host.host()["disk_full"]) == (True, True)
    assert list(host.run.path.glob("*work*")) == []
    (host.project / "data").write_bytes(bytes(50_000))
    assert host.call(ALL_DONE) == 0


def test_recording_the_end_is_retried(host: Host) -> None:
    """As on copy-on-write file systems (ZFS, btrfs), where overwriting needs space too."""
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


def test_a_container_left_by_an_earlier_start_is_removed(tmp_path: Path) -> None:
    """pyxis names it by job and step, and would fail: a requeued job keeps its ID."""
    pyxis = Cluster(name="c", container_runtime="pyxis")
    host = Host(tmp_path, cluster=pyxis, container=Container(image="/images/x.sqsh"))
    store, removed = tmp_path / "stored containers", tmp_path / "removed"
    store.mkdir()
    left = ["pyxis_12.0", "pyxis_12.1"]
    others = ["pyxis_112.0", "pyxis_12x.0", "pyxis_clusterctl_12_0a1b", "my own"]
    for name in (*left, *others):
        (store / name).touch()
    srun = PYXIS.format(store=quote(str(store))) + ALL_DONE
    assert host.call(srun) == 1  # the first start of a job looks for none
    assert host.call(srun, restarts=1) == 1  # no enroot here: nothing is removed, and no message
    enroot = tmp_path / "bin" / "enroot"
    enroot.write_text(ENROOT.format(store=quote(str(store)), removed=quote(str(removed))))
    enroot.chmod(0o755)
    assert host.call(srun, restarts=2) == 0
    assert removed.read_text().split() == left
    assert sorted(path.name for path in store.iterdir()) == sorted(others)


def test_a_task_outside_its_image_ends_with_the_name_of_the_node(tmp_path: Path) -> None:
    """As on a node without pyxis, where srun accepts the options and starts the task on the host."""
    host = Host(tmp_path, cluster=Cluster(name="c", kind="slurm"), container=Container(image="/images/x.sqsh"))
    script = host.script.read_text()
    inside = tmp_path / "clusterctl-image"
    host.script.write_text(script.replace("cctl_in_image=/clusterctl-image", f"cctl_in_image={quote(str(inside))}"))
    body = """
[[ $* == *--container-image* ]] || exit 0
error=$(printf '%s\n' "$@" | sed -n 's/--error=//p')
while [ "$1" != sh ]; do shift; done
export SLURMD_NODENAME=n2
exec "$@" 2>"$error"
"""
    assert host.call(body) == 66
    (log,) = (host.run.attempt(0).path / "logs").glob("*.err")
    line = "clusterctl[launch]: not in its image: pyxis is not active on node n2"
    assert log.read_text() == f"{line}\n"
    known = known_line([line])
    assert known is not None
    assert known.cause_class is Cause.LAUNCH
    inside.touch()
    assert host.call(body) != 66
    assert "not in its image" not in log.read_text().replace(line, "", 1)

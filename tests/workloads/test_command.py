from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from support.ranks import ENTRY, environments, run_job
from support.recorded import beat_of, recorded
from support.scenario import wait_until
from support.traces import block, entry

import clusterctl
from clusterctl.engine.workloads.command import local_world_size, main, takes
from clusterctl.launcher.observe.logs import Logs, Selection
from clusterctl.launcher.submission.script import part
from clusterctl.shared.errors import TaskError
from clusterctl.shared.node.events import Context
from clusterctl.shared.node.processes import carriers, stat_of
from clusterctl.shared.record.files import read_json, write_json
from clusterctl.shared.record.layout import RunDir
from clusterctl.shared.record.place import Place
from clusterctl.shared.spec import CommandTrain, Job, to_record

NAMES = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK"]
ADDRESS = ["MASTER_ADDR", "MASTER_PORT"]


def command(*argv: str) -> Job:
    return Job(name="own", workload="command", argv=argv, train=CommandTrain())


def run_alone(*argv: str) -> None:
    main(Context(to_record(command(*argv)), Place()))


def test_the_program_inherits_descriptors_from_srun() -> None:
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)
    run_alone(sys.executable, "-c", f"import os; os.write({writer}, b'here')")
    assert os.read(reader, 4) == b"here"
    os.close(reader)
    os.close(writer)


def test_every_rank_gets_its_place_and_the_same_address(tmp_path: Path) -> None:
    program = f"import os, json; print(json.dumps([os.environ[name] for name in {NAMES + ADDRESS}]))"
    done = run_job(command("python", "-c", program), RunDir(tmp_path / "run"), [2, 1])
    assert [code for code, _, _ in done] == [0, 0, 0], done
    variables = [json.loads(output) for _, output, _ in done]
    assert [rank[:6] for rank in variables] == [
        ["0", "3", "0", "2", "0", "0"],
        ["1", "3", "1", "2", "0", "0"],
        ["2", "3", "0", "1", "1", "1"],
    ]
    assert len({(rank[6], rank[7]) for rank in variables}) == 1


def test_torch_distributed_initializes_from_these_variables(tmp_path: Path) -> None:
    program = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor([dist.get_rank() + 1])
dist.all_reduce(total)
print(int(total))
dist.destroy_process_group()
"""
    done = run_job(command("python", "-c", program), RunDir(tmp_path / "run"), [1, 1])
    assert [(code, output) for code, output, _ in done] == [(0, "3\n"), (0, "3\n")], done


LISTEN = """
import os, socket, sys, time
os.setuid(65534)
kept = socket.create_server((sys.argv[1], int(sys.argv[2])))
time.sleep(600)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")
def test_another_user_on_the_ranks_port_ends_the_run(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    done: list[tuple[int, str, str]] = []
    program = command("python", "-c", "import time; time.sleep(600)")
    ranks = threading.Thread(target=lambda: done.extend(run_job(program, run, [1])))
    ranks.start()
    place = wait_until(lambda: read_json(run.attempt(0).rendezvous))
    stranger = subprocess.Popen([sys.executable, "-c", LISTEN, place["host"], str(place["port"])])
    try:
        ranks.join(timeout=60)
    finally:
        stranger.kill()
        stranger.wait()
    ((code, _, errors),) = done
    assert code != 0
    assert f"another user is listening on a port of this run: {place['port']}" in errors
    assert list(recorded(run.attempt(0), 0))[-2]["cause"] == "network"


def test_a_failing_programs_exit_code_and_name_are_recorded(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    ((code, _, errors),) = run_job(command("python", "-c", "import sys; sys.exit('no such layer')"), run, [1])
    assert code == 1
    assert errors == "no such layer\n"  # only the program's output, without a traceback of ours
    events = list(recorded(run.attempt(0), 0))
    assert events[-2]["message"].startswith("python -c")
    assert events[-2]["message"].endswith("exited with 1")
    assert (events[-2]["cause"], events[-2]["code"], events[-2]["signal"]) == ("user-error", 1, None)
    assert (events[-1]["code"], events[-1].get("signal")) == (1, None)


def test_a_program_killed_by_a_signal_exits_with_128_plus_the_signal(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    ((code, _, _),) = run_job(command("sh", "-c", "kill -KILL $$"), run, [1])
    assert code == 128 + 9
    exception, ended = list(recorded(run.attempt(0), 0))[-2:]
    assert (exception["cause"], exception["code"], exception["signal"]) == ("killed", 137, 9)
    assert (ended["code"], ended["signal"]) == (137, 9)


@pytest.mark.parametrize(
    ("script", "mark"),
    [
        ("kill -KILL $$", "running"),  # as if the task itself was killed
        ("kill -SEGV $$", "running"),
        ("kill -TERM $$", "term"),
        ("kill -40 $$", "running"),
        ("sh -c 'kill -KILL $$'; exit $?", "running"),  # a shell around the program
        ("exit 143", "term"),
        ("exit 3", "ended"),
        ("exit 0", "done"),
    ],
)
def test_how_the_program_ends_decides_the_mark_of_its_rank(tmp_path: Path, script: str, mark: str) -> None:
    run = RunDir(tmp_path / "run")
    run_job(command("sh", "-c", script), run, [1])
    assert [path.name for path in run.attempt(0).marks.iterdir()] == [f"00000.{mark}"]


def test_term_that_reaches_the_program_first_is_no_failure(tmp_path: Path) -> None:
    """Slurm ends the processes of a step one by one, in any order."""
    run = RunDir(tmp_path / "run")
    (environment,) = environments(run.attempt(0), [1])
    write_json(run.run_json, {"job": to_record(command("sh", "-c", "echo ready; kill -TERM $$"))})
    argv = [sys.executable, "-u", *ENTRY, str(run.path)]
    with subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, text=True) as task:
        assert task.stdout is not None
        assert task.stdout.readline() == "ready\n"
        task.send_signal(signal.SIGTERM)
        assert task.wait() == 143
    assert [path.name for path in run.attempt(0).marks.iterdir()] == ["00000.term"]
    assert "exception" not in [event["event"] for event in recorded(run.attempt(0), 0)]


def test_python_falls_back_to_python3(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "python3").write_text('#!/bin/sh\necho "$@"\n')
    (tmp_path / "python3").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    run_alone("python", "train.py")
    assert capfd.readouterr().out == "train.py\n"


@pytest.mark.parametrize(("argv", "message"), [((), "needs a program"), (("no-such-program",), "cannot run no-such")])
def test_a_missing_program_fails_with_a_hint(argv: tuple[str, ...], message: str) -> None:
    with pytest.raises(TaskError, match=message) as raised:
        run_alone(*argv)
    assert "argv" in raised.value.hint


def test_a_script_that_is_not_executable_fails_with_the_chmod_command(tmp_path: Path) -> None:
    script = tmp_path / "a script.sh"
    script.write_text("#!/bin/sh\n")
    with pytest.raises(TaskError, match="Permission denied") as raised:
        run_alone(str(script))
    assert raised.value.hint == f"make it executable: chmod +x '{script}'"


@pytest.mark.parametrize(
    ("tasks", "node_rank", "expected"), [("2(x3),1", 2, 2), ("2(x3),1", 3, 1), ("4", 0, 4), ("", 1, 4)]
)
def test_the_local_world_size_comes_from_slurms_list(tasks: str, node_rank: int, expected: int) -> None:
    place = Place(node_rank=node_rank, world_size=8, nodes=2)
    assert local_world_size(place, {"SLURM_STEP_TASKS_PER_NODE": tasks}) == expected


SIGNALLED = """
import signal, sys, time
def note(number, _):
    print(signal.Signals(number).name, flush=True)
    if number == signal.SIGTERM:
        sys.exit(7)
for number in (signal.SIGUSR2, signal.SIGTERM):
    signal.signal(number, note)
print("ready", flush=True)
while True:
    signal.pause()
"""


def test_the_warning_and_term_are_forwarded_to_the_program(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    (environment,) = environments(run.attempt(0), [1])
    write_json(run.run_json, {"job": to_record(command("python", "-c", SIGNALLED))})
    argv = [sys.executable, "-u", *ENTRY, str(run.path)]
    with subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, text=True) as task:
        assert task.stdout is not None
        assert task.stdout.readline() == "ready\n"
        task.send_signal(signal.SIGUSR2)
        assert task.stdout.readline() == "SIGUSR2\n"
        task.send_signal(signal.SIGTERM)
        assert task.stdout.readline() == "SIGTERM\n"
        assert task.wait() == 7
    exits = [event for event in recorded(run.attempt(0), 0) if event["event"] == "exit"]
    assert [(event["code"], event.get("signal")) for event in exits] == [(143, 15), (7, None)]


# A program with habits of its own: it saves on a signal of its choice, and knows nothing of clusterctl.
HABITUAL = """
import os, signal, sys, time
def save(number, _):
    time.sleep(float(os.environ.get("SAVING", "0")))
    print("saved on", signal.Signals(number).name, flush=True)
    sys.exit(int(os.environ.get("CODE", "0")))
signal.signal(getattr(signal, os.environ["SAVES_ON"]), save)
if "FORKS" in os.environ and os.fork() == 0:  # like a worker of a data loader
    time.sleep(60)
print("ready", flush=True)
time.sleep(60)
"""


def of_habit(run: RunDir, *argv: str, **restart: object) -> subprocess.Popen[str]:
    """The task of a program that the run's `[restart]` table fits."""
    (environment,) = environments(run.attempt(0), [1])
    record = to_record(command(*argv))
    record["restart"] |= restart
    record["resources"]["warning"] = 11
    write_json(run.run_json, {"job": record})
    argv = (sys.executable, "-u", *ENTRY, str(run.path))
    environment = {**os.environ, **environment}
    return subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def marks_of(run: RunDir) -> set[str]:
    return {path.name for path in run.attempt(0).marks.iterdir()}


GOES_BACK = {"00000.asked", "restart", "unasked"}


@pytest.mark.parametrize("name", ["USR1", "USR2", "TERM"])
@pytest.mark.parametrize("code", ["0", "3"])
def test_a_program_saves_on_its_own_signal_and_starts_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, code: str
) -> None:
    monkeypatch.setenv("SAVES_ON", f"SIG{name}")
    monkeypatch.setenv("CODE", code)
    run = RunDir(tmp_path / "run")
    with of_habit(run, "python", "-c", HABITUAL, signal=name, at_limit=True) as task:
        assert task.stdout is not None
        assert task.stdout.readline() == "ready\n"
        task.send_signal(signal.SIGUSR2)  # Slurm's warning
        assert task.stdout.readline() == f"saved on SIG{name}\n"
        assert task.wait() == 0, "srun would end the other ranks"
    assert marks_of(run) == GOES_BACK
    assert read_json(run.requeue_json)["reason"] == "warned"


_BELOW = "import signal, subprocess, sys\n{}subprocess.run([sys.executable, '-c', sys.argv[1]])"
LAUNCHERS = {
    "shell": ["bash", "-c", 'python -c "$1"; echo "left with $?"', "bash"],
    "program": ["python", "-c", _BELOW.format("")],
    "passes-on": ["python", "-c", _BELOW.format("signal.signal(signal.SIGUSR1, print)\n")],
}


@pytest.mark.parametrize("launcher", LAUNCHERS.values(), ids=LAUNCHERS)
def test_the_signal_reaches_the_program_below_its_launcher(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, launcher: list[str]
) -> None:
    monkeypatch.setenv("SAVES_ON", "SIGUSR1")
    run = RunDir(tmp_path / "run")
    with of_habit(run, *launcher, HABITUAL, signal="USR1", at_limit=True) as task:
        assert task.stdout is not None
        assert task.stdout.readline() == "ready\n"
        task.send_signal(signal.SIGUSR2)
        assert "saved on SIGUSR1\n" in (output := task.stdout.read())
        assert "frame" not in output, "the launcher got it, too"
        assert task.wait() == 0
    assert marks_of(run) == GOES_BACK


def test_a_forked_copy_of_the_program_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAVES_ON", "SIGUSR1")
    monkeypatch.setenv("FORKS", "yes")
    run = RunDir(tmp_path / "run")
    with of_habit(run, "python", "-c", HABITUAL, signal="USR1", at_limit=True) as task:
        assert task.stdout is not None
        assert task.stdout.readline() == "ready\n"
        task.send_signal(signal.SIGUSR2)
        assert task.wait() == 0
        (child,) = [pid for pid, carried in carriers(f"CLUSTERCTL_RUN_DIR={run.path}") if "RANK" in carried]
        os.kill(child, signal.SIGKILL)  # the batch script ends what is left
        assert task.stdout.read() == "saved on SIGUSR1\n"


def test_a_program_that_ignores_the_warning_is_ended_before_the_limit(tmp_path: Path) -> None:
    stubborn = "import signal, time; signal.signal(signal.SIGTERM, print); print('ready', flush=True); time.sleep(60)"
    run = RunDir(tmp_path / "run")
    with of_habit(run, "python", "-c", stubborn, at_limit=True) as task:
        assert task.stdout is not None
        assert task.stdout.readline() == "ready\n"
        task.send_signal(signal.SIGUSR2)
        assert task.wait() == 0
    assert marks_of(run) == GOES_BACK


@pytest.mark.parametrize(("warned", "at_limit"), [(False, True), (True, True), (True, False)])
def test_a_program_that_was_told_nothing_has_finished(tmp_path: Path, warned: bool, at_limit: bool) -> None:
    run, go = RunDir(tmp_path / "run"), tmp_path / "go"
    program = "import os, sys, time; print('ready', flush=True)\nwhile not os.path.exists(sys.argv[1]): time.sleep(0.1)"
    with of_habit(run, "python", "-c", program, str(go), at_limit=at_limit) as task:
        assert task.stdout is not None
        assert task.stdout.readline() == "ready\n"
        if warned:
            task.send_signal(signal.SIGUSR2)
        go.touch()
        assert task.wait() == 0
    assert marks_of(run) == {"00000.done"}


@pytest.mark.parametrize(("name", "cancelled"), [("TERM", False), ("TERM", True), ("USR1", False)])
def test_a_program_that_saves_on_its_signal_gets_the_time_for_it_at_a_preemption(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, cancelled: bool
) -> None:
    """But not if somebody waits for its end. It has not finished, although it exits with 0."""
    monkeypatch.setenv("SAVES_ON", f"SIG{name}")
    monkeypatch.setenv("SAVING", "5")  # longer than other programs get
    run = RunDir(tmp_path / "run")
    with of_habit(run, "python", "-c", HABITUAL, signal=name, at_limit=True) as task:
        assert task.stdout is not None
        assert task.stdout.readline() == "ready\n"
        if cancelled:
            run.cancel_json.write_text("{}")
        task.send_signal(signal.SIGTERM)
        assert task.stdout.read() == ("" if cancelled else f"saved on SIG{name}\n")
        task.wait()
    assert marks_of(run) == {"00000.term"}


def test_a_program_that_only_term_has_ended_does_not_count_as_killed(tmp_path: Path) -> None:
    """Slurm may have sent it while it ends all ranks, on a machine too busy to tell this task in time."""
    run = RunDir(tmp_path / "run")
    with of_habit(run, "python", "-c", "import os, time; print(os.getpid(), flush=True); time.sleep(60)") as task:
        assert task.stdout is not None
        os.kill(int(task.stdout.readline()), signal.SIGTERM)
        assert task.wait() == 143
    assert marks_of(run) == {"00000.term"}


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("handler", ["lambda *_: sys.exit(0)", "signal.SIG_DFL"])
def test_a_program_that_term_has_cut_short_has_not_finished(tmp_path: Path, handler: str, first: bool) -> None:
    """Slurm sends TERM to one process after another, and the program may leave before its task hears of it."""
    program = f"import os, signal, sys, time; signal.signal(signal.SIGTERM, {handler}); time.sleep(1.5); "
    run = RunDir(tmp_path / "run")
    with of_habit(run, "python", "-c", program + "print(os.getpid(), flush=True); time.sleep(60)") as task:
        assert task.stdout is not None
        pid = int(task.stdout.readline())
        if first:
            os.kill(pid, signal.SIGTERM)
            wait_until(lambda: not (stat := stat_of(pid)) or stat.has_ended)
        task.send_signal(signal.SIGTERM)
        assert task.wait() == 143
    assert marks_of(run) == {"00000.term"}


# Modules that the process next to a program does not need; there may be thousands of these processes.
HEAVY = {"torch", "numpy", "submitit", "cloudpickle", "click", "clusterctl.shared.spec"}
HEAVY |= {"asyncio", "concurrent.futures", "email", "http", "importlib.metadata", "logging", "multiprocessing", "ssl"}
MOST_MODULES = 180  # 155 on Python 3.11


def test_the_process_beside_a_program_imports_little(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    (environment,) = environments(run.attempt(0), [1])
    write_json(run.run_json, {"job": to_record(command("true"))})
    entry = "import runpy, sys\ntry: runpy.run_module('clusterctl.runs', run_name='__main__', alter_sys=True)\n"
    report = "finally: print(*sys.modules, file=sys.__stdout__)"
    argv = [sys.executable, "-S", "-c", entry + report, str(run.path)]  # -S: without site-packages
    environment["PYTHONPATH"] = str(Path(clusterctl.__file__).parents[1])
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=True)
    modules = set(done.stdout.split())
    assert "clusterctl.engine.workloads.command" in modules
    assert not modules & HEAVY
    assert len(modules) <= MOST_MODULES, sorted(modules)


def test_output_times_are_recorded_next_to_an_unchanged_log(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    attempt = run.attempt(0)
    (environment,) = environments(attempt, [1])
    prints = "import sys, time; print('a', flush=True); time.sleep(2.5); print('b', end='', flush=True); sys.exit('c')"
    write_json(run.run_json, {"job": to_record(command("python", "-c", prints))})
    attempt.log(0).parent.mkdir()
    with attempt.log(0).open("wb") as out, attempt.log(0, "err").open("wb") as err:
        argv = [sys.executable, *ENTRY, str(run.path)]
        assert subprocess.run(argv, env=environment, stdout=out, stderr=err, check=False).returncode == 1
    assert (attempt.log(0).read_text(), attempt.log(0, "err").read_text()) == ("a\nb", "c\n")
    first, *others = Logs(run, Selection()).read(ended=True)
    assert [line.content for line in (first, *others)] == [b"a", b"b", b"c"]
    assert all(2 < line.time - first.time < 60 for line in others)


@pytest.mark.parametrize(
    ("worker", "code", "signals", "mark"),
    [(-9, 1, [9, 9], "00000.running"), (1, 1, [None, None], "00000.ended"), (-9, 2, [None, None], "00000.ended")],
)
def test_a_killed_worker_of_torchrun_leaves_its_rank_killed(
    tmp_path: Path, worker: int, code: int, signals: list[int | None], mark: str
) -> None:
    run = RunDir(tmp_path / "run")
    attempt = run.attempt(0)
    (environment,) = environments(attempt, [1])
    prints = f"import sys; sys.stderr.write({block(entry(1, worker))!r}); sys.exit({code})"
    write_json(run.run_json, {"job": to_record(command("python", "-c", prints))})
    attempt.log(0).parent.mkdir()
    with attempt.log(0, "err").open("wb") as err:
        argv = [sys.executable, *ENTRY, str(run.path)]
        ended = subprocess.run(argv, env=environment, stderr=err, check=False).returncode
    assert ended == (128 + 9 if signals[0] else code)
    events = [event for event in recorded(attempt, 0) if event["event"] in ("exception", "exit")]
    assert [event.get("signal") for event in events] == signals
    assert ("worker 5 was killed by SIGKILL" in events[0]["message"]) is bool(signals[0])
    assert [path.name for path in attempt.marks.iterdir()] == [mark]


DEEPSPEEDS = (
    "[2026-11-26 00:46:41,123] [ERROR] [launch.py:325:sigkill_handler] ['python', 't.py'] exits with return code = "
)


@pytest.mark.parametrize(
    ("worker", "code", "signals"), [("-9", 247, [9, 9]), ("247", 247, [None, None]), ("-9", 3, [None, None])]
)
def test_a_killed_worker_of_deepspeed_leaves_its_rank_killed(
    tmp_path: Path, worker: str, code: int, signals: list[int | None]
) -> None:
    run = RunDir(tmp_path / "run")
    attempt = run.attempt(0)
    (environment,) = environments(attempt, [1])
    prints = f"import sys; print({DEEPSPEEDS + worker!r}, flush=True); sys.exit({code})"
    write_json(run.run_json, {"job": to_record(command("python", "-c", prints))})
    attempt.log(0).parent.mkdir()
    with attempt.log(0).open("wb") as out, attempt.log(0, "err").open("wb") as err:
        argv = [sys.executable, *ENTRY, str(run.path)]
        ended = subprocess.run(argv, env=environment, stdout=out, stderr=err, check=False).returncode
    assert ended == (128 + 9 if signals[0] else code)
    events = [event for event in recorded(attempt, 0) if event["event"] in ("exception", "exit")]
    assert [event.get("signal") for event in events] == signals


TORCHRUN = """
import os, signal, sys, time
def interrupted(*_):
    sys.exit("torch.distributed.elastic.multiprocessing.api.SignalException: Process 7 got signal: 15")
signal.signal(signal.SIGTERM, interrupted)
print("torchrun", flush=True)
time.sleep(float(sys.argv[1]))
sys.stderr.write({block!r})
sys.exit(1)
"""


@pytest.mark.parametrize(
    ("after", "code", "signals", "mark"),
    [("0.6", 137, [9, 9], "00000.running"), ("30", 1, [signal.SIGTERM, None], "00000.term")],
)
def test_a_launcher_that_is_ended_because_others_have_left_says_first_who_was_killed(
    tmp_path: Path, after: str, code: int, signals: list[int], mark: str
) -> None:
    """If workers run on several nodes, the launcher of another may leave first; then srun sends TERM to this one."""
    run = RunDir(tmp_path / "run")
    attempt = run.attempt(0)
    (environment,) = environments(attempt, [1])
    (tmp_path / "torchrun").write_text(TORCHRUN.format(block=block(entry(1, -9))))
    write_json(run.run_json, {"job": to_record(command("python", str(tmp_path / "torchrun"), after))})
    attempt.log(0).parent.mkdir()
    with attempt.log(0).open("wb") as out, attempt.log(0, "err").open("wb") as err:
        argv = [sys.executable, *ENTRY, str(run.path)]
        with subprocess.Popen(argv, env=environment, stdout=out, stderr=err) as task:
            wait_until(lambda: "torchrun" in attempt.log(0).read_text())
            task.send_signal(signal.SIGTERM)
            task.wait()
    assert task.returncode == code
    events = [event for event in recorded(attempt, 0) if event["event"] in ("exception", "exit")]
    assert [event.get("signal") for event in events] == signals
    assert [path.name for path in attempt.marks.iterdir()] == [mark]


LATE = """
import os, signal, time
signal.alarm(30)
print("started", flush=True)
while not os.path.exists(os.environ["CLUSTERCTL_STOP_FILE"]):
    time.sleep(0.01)
time.sleep(0.5)
signal.signal(signal.SIGUSR2, lambda *_: print("warned", flush=True))
signal.pause()
"""


def held_back() -> list[str]:
    """The command with which the batch script starts a task, so that an early warning is not lost."""
    (words,) = re.findall(r"(?ms)^ +(sh -c '[^']*--block-signal[^']*') ", part("batch.sh"))
    return [*shlex.split(words), "sh"]


@pytest.mark.parametrize("moment", ["before the task starts", "before the program handles it"])
def test_a_warning_is_held_until_the_program_handles_it(tmp_path: Path, moment: str) -> None:
    run = RunDir(tmp_path / "run")
    (environment,) = environments(run.attempt(0), [1])
    write_json(run.run_json, {"job": to_record(command("python", "-c", LATE))})
    argv = [*held_back(), sys.executable, *ENTRY, str(run.path)]
    with subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, text=True) as task:
        assert task.stdout is not None
        if moment == "before the task starts":
            # The shell that precedes it briefly blocks all signals, and ignores this one.
            comm = Path(f"/proc/{task.pid}/comm")
            wait_until(
                lambda: comm.read_text() != "sh\n" and takes(task.pid, signal.SIGUSR2), what="the blocked signal"
            )
            task.send_signal(signal.SIGUSR2)
            assert task.stdout.readline() == "started\n"
        else:
            assert task.stdout.readline() == "started\n"
            task.send_signal(signal.SIGUSR2)
        assert task.stdout.read() == "warned\n"
        assert task.wait() == 0


CLEANED = """
import os, pathlib, shutil, signal, time
stop = pathlib.Path(os.environ["CLUSTERCTL_STOP_FILE"])
signal.signal(signal.SIGUSR2, lambda *_: print("warned", flush=True))
shutil.rmtree(stop.parent)
if os.path.exists("planted"):
    os.symlink(os.getcwd(), stop.parent)
print("ready", flush=True)
signal.pause()
deadline = time.monotonic() + 20
while not stop.exists() and time.monotonic() < deadline and not os.path.exists("planted"):
    time.sleep(0.05)
print(stop.exists() and stop.parent.stat().st_mode & 0o777, flush=True)
"""


@pytest.mark.parametrize(("planted", "shown"), [(False, str(0o700)), (True, "False")])
def test_the_warning_reaches_a_program_whose_temporary_files_were_removed(
    tmp_path: Path, planted: bool, shown: str
) -> None:
    """A link that somebody has put in their place is not followed."""
    run = RunDir(tmp_path / "run")
    (environment,) = environments(run.attempt(0), [1])
    write_json(run.run_json, {"job": to_record(command("python", "-c", CLEANED))})
    if planted:
        (tmp_path / "planted").touch()
    argv = [sys.executable, *ENTRY, str(run.path)]
    with subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, text=True, cwd=tmp_path) as task:
        assert task.stdout is not None
        assert task.stdout.readline() == "ready\n"
        task.send_signal(signal.SIGUSR2)
        assert task.stdout.read().split() == ["warned", shown]
        assert task.wait() == 0
    assert not (tmp_path / "stop").exists()


def test_a_program_without_handler_survives_the_warning_and_dies_with_its_task(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    (environment,) = environments(run.attempt(0), [1])
    sleeper = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
    write_json(run.run_json, {"job": to_record(command("python", "-c", sleeper))})
    argv = [sys.executable, *ENTRY, str(run.path)]
    with subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, text=True) as task:
        assert task.stdout is not None
        child = int(task.stdout.readline())
        os.kill(child, signal.SIGUSR2)
        assert Path(f"/proc/{child}").exists()
        task.kill()
        deadline = time.monotonic() + 10
        while Path(f"/proc/{child}").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        assert not Path(f"/proc/{child}").exists()


SILENT = """
import os, time
from clusterctl.shared.record.heartbeats import read_beats
from clusterctl.shared.record.layout import current_attempt
path, rank, deadline = current_attempt().beats(0), int(os.environ["RANK"]), time.monotonic() + 60
while ((beat := read_beats(path).get(rank)) is None or beat.idle is None) and time.monotonic() < deadline:
    time.sleep(0.05)
print(beat.step, beat.phase, beat.idle is not None, beat.pid == os.getppid())
"""


def test_a_program_that_logs_no_steps_is_watched_by_its_activity(tmp_path: Path) -> None:
    done = run_job(command("python", "-c", SILENT), RunDir(tmp_path / "run"), [2])
    assert [(code, output) for code, output, _ in done] == [(0, "0 training True True\n")] * 2, done


BEATING = """
import os, time
from pathlib import Path
import clusterctl.program
from clusterctl.shared.record.heartbeats import read_beats
from clusterctl.shared.record.layout import current_attempt
for step in range(1, 6): clusterctl.program.log(step=step, loss=0.5)
clusterctl.program.phase("evaluating")
path, rank, deadline = current_attempt().beats(0), int(os.environ["RANK"]), time.monotonic() + 30
while ((beat := read_beats(path).get(rank)) is None or beat.phase != "evaluating") and time.monotonic() < deadline:
    time.sleep(0.05)
print(beat.step, beat.phase, beat.pid == os.getpid(), beat.step_seconds is not None, beat.idle)
"""


def test_logged_steps_are_the_heartbeats_of_a_program(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    done = run_job(command("python", "-c", BEATING), run, [2])
    assert [(code, output) for code, output, _ in done] == [(0, "5 evaluating True True None\n")] * 2, done
    for rank in range(2):
        beat = beat_of(run.attempt(0), rank)
        assert beat is not None
        assert beat.phase == "ended"

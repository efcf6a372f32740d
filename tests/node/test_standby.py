"""A rank that a standby has forked cannot be told from one that Slurm started."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from support.scenario import wait_until

from clusterctl.shared.node.processes import carriers, has_signal, stat_of
from clusterctl.shared.record.files import write_json

# As the tasks' and the standbys' program, but what they import and run is Python code from the command line.
PROGRAM = """
import os, sys, time
from clusterctl.shared.node import deputy
code, imports = sys.argv[1], os.environ.get("IMPORTS", "")
deputy._COME_SECONDS = float(os.environ.get("COME_SECONDS", "10"))
if sys.argv[2:] == ["standby"]:
    from clusterctl.shared.node import standby
    standby.import_workload = lambda run_dir, users_path: exec(imports)
    standby.serve(sys.argv[1], [])
    code = os.environ["CODE"]
else:
    followed = deputy._followed
    deputy._followed = lambda connection: time.sleep(float(os.environ.get("LATE_SECONDS", "0"))) or followed(connection)
    if "RENAMED" in os.environ:
        at_start = os.getcwd()
        os.rename(at_start, os.environ["FOLDER"])
        os.mkdir(at_start)
        os.getcwd = lambda: at_start
    deputy.hand_over()
    print("alone", flush=True)
exec(code)
"""
DESCRIBE = """
import json
with open("/proc/self/environ", errors="surrogateescape") as file:
    shown = dict(pair.partition("=")[::2] for pair in file.read().split("\\0") if pair)
umask = os.umask(0)
os.umask(umask)
print(json.dumps({
    "pid": os.getpid(), "parent": os.getppid(), "folder": os.getcwd(), "words": sys.argv[1:], "umask": umask,
    "cpus": sorted(os.sched_getaffinity(0)), "environment": dict(os.environ), "shown": shown, "input": input(),
    "open": sorted(map(int, os.listdir("/proc/self/fd")))[:-1], "blocked": open("/proc/self/status").read(),
}))
"""
MARKS = {"CLUSTERCTL_RUN_DIR": "/run/of/test", "CLUSTERCTL_ATTEMPT": "3", "SLURM_PROCID": "5"}
LOOK = "import time\nprint(os.getpid(), flush=True)\n"


class Node:
    """A node with a standby, and its tasks."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        name = secrets.token_hex(4)
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM_", "CLUSTERCTL_"))}
        self.environment = {**kept, "CLUSTERCTL_STANDBY": name, "SLURMD_NODENAME": "node7"}
        self.processes: list[subprocess.Popen[str]] = []

    def standby(self, imports: str = "") -> subprocess.Popen[str]:
        process = self._start("run", "standby", IMPORTS=imports, IN_STANDBY="yes " * 500)
        address = f"@clusterctl-{self.environment['CLUSTERCTL_STANDBY']}@node7"
        wait_until(lambda: address in Path("/proc/net/unix").read_text() or process.poll() is not None)
        return process

    def task(self, code: str, folder: Path | None = None, **variables: str) -> subprocess.Popen[str]:
        return self._start(code, CODE=code, folder=folder, **{**MARKS, **variables})

    def output_of(self, code: str, **variables: str) -> str:
        out, _ = self.task(code, **variables).communicate("typed\n", timeout=60)
        return out

    def _start(self, *words: str, folder: Path | None = None, **variables: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-u", "-c", PROGRAM, *words],
            env={**self.environment, **variables},
            cwd=folder or self.folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.processes.append(process)
        return process


def has_ended(pid: int) -> bool:
    stat = stat_of(pid)
    return stat is None or stat.has_ended


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path)
    yield node
    for process in node.processes:
        with suppress(ProcessLookupError):
            process.kill()
        process.communicate()


def test_a_rank_has_everything_from_its_task(node: Node, tmp_path: Path) -> None:
    standby = node.standby()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    cpu = min(os.sched_getaffinity(0))
    set_here = f"os.umask(0o027); os.sched_setaffinity(0, {{{cpu}}})\n"
    # Slurm would have set these before the task started
    program = PROGRAM.replace("    deputy.hand_over()", f"    {set_here}    deputy.hand_over()")
    task = subprocess.Popen(
        [sys.executable, "-u", "-c", program, DESCRIBE],
        env={
            **node.environment,
            "CODE": DESCRIBE,
            **MARKS,
            "ÄÖ\udcff": "ü\udcfe",
        },
        cwd=elsewhere,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    node.processes.append(task)
    rank = json.loads(task.communicate("typed\n", timeout=60)[0])
    assert rank["parent"] == standby.pid
    assert (rank["folder"], rank["input"], rank["umask"], rank["cpus"]) == (str(elsewhere), "typed", 0o027, [cpu])
    assert rank["words"] == ["run"]
    assert rank["open"] == [0, 1, 2]
    for variables in (rank["environment"], rank["shown"]):
        assert (variables["SLURM_PROCID"], variables["CLUSTERCTL_ATTEMPT"]) == ("5", "3")
        assert variables["ÄÖ\udcff"] == "ü\udcfe"
        assert "IN_STANDBY" not in variables
    assert "CLUSTERCTL_STANDBY" not in rank["environment"]
    blocked = next(line.split()[1] for line in rank["blocked"].splitlines() if line.startswith("SigBlk"))
    assert int(blocked, 16) == 1 << (signal.SIGUSR2 - 1)  # as by the batch script, until it can be handled


def test_what_the_rank_forks_carries_its_marks_and_its_task_does_not(node: Node) -> None:
    node.standby()
    run = secrets.token_hex(8)
    code = f"{LOOK}os.fork()\ntime.sleep(60)"
    task = node.task(code, CLUSTERCTL_RUN_DIR=run)
    assert task.stdout is not None
    rank = int(task.stdout.readline())

    def carrying() -> set[int]:
        return {
            pid for pid, carried in carriers(f"CLUSTERCTL_RUN_DIR={run}") if carried.get("CLUSTERCTL_ATTEMPT") == "3"
        }

    wait_until(lambda: len(carrying()) == 2)
    assert rank in carrying()
    assert task.pid not in carrying()
    for pid in carrying():
        os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize(
    ("code", "end"),
    [
        ("", 0),
        ("sys.exit(75)", 75),
        ("raise SystemExit('no')", 1),
        ("os.kill(os.getpid(), 9)", -9),
        ("os.abort()", -6),
        ("os.kill(os.getpid(), 15)", -15),
    ],
)
def test_a_task_ends_like_its_rank(node: Node, code: str, end: int) -> None:
    node.standby()
    task = node.task(code)
    out, _ = task.communicate(timeout=60)
    assert (out, task.returncode) == ("", end)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT, signal.SIGHUP])
@pytest.mark.parametrize("late", ["0", "1.5"])
def test_a_rank_gets_its_tasks_signals(node: Node, number: signal.Signals, late: str) -> None:
    """Also one that comes before its task listens for them."""
    node.standby()
    handle = f"import signal\nsignal.signal({int(number)}, lambda *_: sys.exit(42))\n"
    ready = f"signal.pthread_sigmask(signal.SIG_UNBLOCK, {{{int(number)}}})\n{LOOK}time.sleep(60)"
    task = node.task(handle + ready, LATE_SECONDS=late)
    assert task.stdout is not None
    assert task.stdout.readline().strip().isdigit()
    task.send_signal(number)
    assert task.wait(timeout=60) == 42


def test_a_task_that_becomes_the_rank_ends_at_a_signal_that_came_before(node: Node) -> None:
    standby = node.standby("import time; time.sleep(3)")
    task = node.task(f"{LOOK}time.sleep(60)")
    wait_until(lambda: has_signal(task.pid, signal.SIGTERM, "SigBlk"))
    task.terminate()
    standby.kill()
    assert task.wait(timeout=60) == -signal.SIGTERM


def test_a_rank_ends_with_its_task(node: Node) -> None:
    standby = node.standby()
    task = node.task(f"import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n{LOOK}time.sleep(60)")
    assert task.stdout is not None
    rank = int(task.stdout.readline())
    task.kill()
    wait_until(lambda: has_ended(rank))
    assert node.output_of("print(1)") == "1\n"  # the standby is still there
    assert standby.poll() is None


def test_ranks_and_tasks_end_with_a_killed_standby(node: Node) -> None:
    standby = node.standby()
    task = node.task(f"{LOOK}time.sleep(60)")
    assert task.stdout is not None
    rank = int(task.stdout.readline())
    standby.kill()
    assert task.wait(timeout=60) == -signal.SIGKILL
    wait_until(lambda: has_ended(rank))


def test_a_standby_that_is_to_end_stays_for_its_ranks_alone(node: Node) -> None:
    standby = node.standby()
    task = node.task(f"{LOOK}input()\nprint('saved')")
    assert task.stdout is not None
    assert task.stdout.readline().strip().isdigit()
    for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGTERM):
        standby.send_signal(number)
    assert node.output_of("print('it')") == "alone\nit\n"
    assert task.communicate("\n", timeout=60)[0] == "saved\n"
    assert (task.returncode, standby.wait(timeout=60)) == (0, 0)


@pytest.mark.parametrize(
    "imports",
    [
        "import threading, time; threading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
        "sys.modules['clusterctl.shared.node.standby']._DRIVERS = ('/dev/null',); sys.held = open('/dev/null')",
        "raise ImportError('no torch here')",
        "sys.exit(3)",
        "os._exit(1)",
    ],
)
def test_a_task_is_the_rank_itself_if_its_standby_cannot_become_it(node: Node, imports: str) -> None:
    node.standby(imports)
    assert node.output_of("print(2)", COME_SECONDS="0.2") == "alone\n2\n"


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="takes two CPUs")
def test_a_task_with_other_cpus_than_its_standby_is_the_rank_itself(node: Node) -> None:
    """A site may give a step of one task a single CPU."""
    node.standby("os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})")
    assert node.output_of("print(len(os.sched_getaffinity(0)) > 1)") == "alone\nTrue\n"


def test_a_task_whose_folder_its_standby_does_not_see_is_the_rank_itself(node: Node, tmp_path: Path) -> None:
    """In an image each process has mounts of its own: only a folder that both have at the same path is the rank's."""
    folder = tmp_path / "moved"
    folder.mkdir()
    node.standby()
    look = "print(os.path.samefile('.', os.environ['FOLDER']))"
    assert node.task(look, folder, FOLDER=str(folder)).communicate(timeout=60)[0] == "True\n"
    task = node.task(look, folder, FOLDER=str(tmp_path / "elsewhere"), RENAMED="yes")
    assert task.communicate(timeout=60)[0] == "alone\nTrue\n"


def test_a_task_is_the_rank_itself_without_a_standby(node: Node) -> None:
    assert node.output_of("print(2)", COME_SECONDS="0.2") == "alone\n2\n"


def test_a_task_with_an_environment_too_large_to_send_is_the_rank_itself(node: Node) -> None:
    node.standby()
    large = {f"LARGE_{number}": "x" * 100_000 for number in range(6)}
    assert node.output_of("print(len(os.environ['LARGE_5']))", **large) == "alone\n100000\n"
    assert node.output_of("print(3)") == "3\n"


@pytest.mark.parametrize("forked", [True, False], ids=["forked", "alone"])
def test_what_an_earlier_attempt_has_left_ends_before_the_next_rank_begins(
    node: Node, tmp_path: Path, forked: bool
) -> None:
    """The batch script leaves this to the standbys, and where there is none, to the task itself."""
    run = tmp_path / "run"
    for attempt in range(2):
        (run / "attempts" / str(attempt)).mkdir(parents=True)
        write_json(run / "attempts" / str(attempt) / "host.json", {"job_id": "12"})
    marks = {"CLUSTERCTL_RUN_DIR": str(run), "SLURM_JOB_ID": "12", "SLURM_STEP_ID": "0", "SLURM_PROCID": "0"}
    if forked:
        node.standby()
    left = {
        attempt: subprocess.Popen(["sleep", "60"], env={**node.environment, **marks, "CLUSTERCTL_ATTEMPT": attempt})
        for attempt in ("0", "1")
    }
    try:
        look = f"print([os.path.exists(f'/proc/{{pid}}/exe') for pid in {[one.pid for one in left.values()]}])"
        new = {**marks, "SLURM_STEP_ID": "1", "CLUSTERCTL_ATTEMPT": "2", "COME_SECONDS": "0.2"}
        output = node.output_of(look, **new)
        assert ("alone" not in output) == forked
        assert output.splitlines()[-1] == "[False, False]"
        assert {one.wait() for one in left.values()} == {-signal.SIGKILL}
    finally:
        for one in left.values():
            one.kill()


def test_threads_that_end_at_a_fork_are_no_hindrance(node: Node) -> None:
    node.standby("import numpy; numpy.ones((200, 200)) @ numpy.ones((200, 200))")  # OpenBLAS
    assert node.output_of("print(3)") == "3\n"


def test_ranks_draw_different_random_numbers(node: Node) -> None:
    node.standby("import numpy, random")
    drawn = {node.output_of("import numpy, random; print(numpy.random.rand(), random.random())") for _ in range(3)}
    assert len(drawn) == 3
    assert not any("alone" in text for text in drawn)


def test_each_rank_repeats_the_warnings_of_the_imports(node: Node) -> None:
    node.standby("sys.stderr.write('numpy is old\\n')")
    task = node.task("print(3)")
    assert task.communicate(timeout=60) == ("3\n", "numpy is old\n")


def test_a_change_of_the_environment_by_an_import_is_kept(node: Node) -> None:
    node.standby("os.environ['SET_BY_IMPORT'] = 'yes'")
    assert node.output_of("print(os.environ['SET_BY_IMPORT'])") == "yes\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="takes root to become another user")
def test_another_user_gets_no_rank_and_is_no_standby(node: Node) -> None:
    name = f"\\0clusterctl-{node.environment['CLUSTERCTL_STANDBY']}@node7"
    stranger = "import os, socket\nos.setuid(65534)\nit = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n"
    squatting = f"{stranger}it.bind('{name}')\nit.listen()\nprint(1, flush=True)\ninput()\n"
    squatter = subprocess.Popen(
        [sys.executable, "-c", squatting], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    node.processes.append(squatter)
    assert squatter.stdout is not None
    assert squatter.stdout.readline() == "1\n"
    assert node.standby().wait(timeout=60) != 0
    assert node.output_of("print(2)") == "alone\n2\n"
    squatter.communicate("\n")
    node.standby()
    asking = f"{stranger}it.connect('{name}')\nsocket.send_fds(it, [b'{{}}'], [0, 1, 2, 2])\nprint(it.recv(9))"
    asked = subprocess.run([sys.executable, "-c", asking], capture_output=True, text=True)
    assert asked.stdout in ("", "b''\n")  # closed before or after it could ask
    assert node.output_of("print(3)") == "3\n"

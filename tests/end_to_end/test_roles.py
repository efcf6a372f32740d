"""Three roles on four nodes: every way in which one of them can fail, what becomes of the job, and what `why` says."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from support.scenario import BACK_ENDS, Stage, alive, wait_until

from clusterctl.shared.record.layout import RunDir

pytestmark = [pytest.mark.long, pytest.mark.parametrize("back_end", BACK_ENDS, indirect=True)]

SERVE = """
import http.server, os, signal, sys, time
class Answers(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"here")
    def log_message(self, *words):
        pass
if os.environ.get("IGNORES_TERM"):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("serving on", sys.argv[1], flush=True)
http.server.ThreadingHTTPServer((os.environ["CLUSTERCTL_HOST"], int(sys.argv[1])), Answers).serve_forever()
"""
TRAIN = """
import os, sys, time, urllib.request
from clusterctl import program
for step in range(int(sys.argv[1])):
    for address in sys.argv[2:]:
        assert urllib.request.urlopen(f"http://{address}/").read() == b"here"
    program.log(step=step, loss=1 / (step + 1))
    print("step", step, os.environ["RANK"], "of", os.environ["WORLD_SIZE"], flush=True)
    if program.stop_requested():
        print("warned", flush=True)
    time.sleep(0.2)
"""
JOB = """
code = "."
[resources]
time = "10m"

[[role]]
name = "store"
program = ["python", "serve.py", "{port}"]
ready = "http://{host}:{port}/"
grace = 1

[[role]]
name = "features"
program = ["python", "serve.py", "{port}"]
ready = "tcp://{host}:{port}"
needs = ["store"]
grace = 2

[[role]]
name = "trainer"
nodes = 2
program = ["python", "train.py", "STEPS", "{store.addresses}", "{features.addresses}"]
needs = ["store", "features"]
ends = "job"
grace = 1
"""
GRACE = 2  # the longest


def written(stage: Stage, steps: int) -> str:
    (stage.folder / "serve.py").write_text(SERVE)
    (stage.folder / "train.py").write_text(TRAIN)
    return stage.write_job("three", JOB.replace("STEPS", str(steps)))


def program_of(run: RunDir, role: str, rank: int = 0) -> int:
    """The process of a role's program."""
    marks = {f"CLUSTERCTL_ROLE={role}", f"CLUSTERCTL_ROLE_RANK={rank}"}
    for pid in alive(run):
        try:
            if marks <= set(Path(f"/proc/{pid}/environ").read_text(errors="replace").split("\0")):
                return pid
        except OSError:
            continue
    raise AssertionError(f"{role} r{rank} does not run")


def has_program(run: RunDir, role: str) -> bool:
    try:
        return program_of(run, role) > 0
    except AssertionError:
        return False


def training(stage: Stage, run: RunDir) -> None:
    """Wait until the trainers are at work."""

    def steps() -> bool:
        logs = [run.attempt(0).log(rank, "out") for rank in (2, 3)]
        return all(log.exists() and "step 5" in log.read_text() for log in logs)

    wait_until(steps, 60, "the first steps")


def why(stage: Stage, run: RunDir) -> dict[str, Any]:
    import json

    done = stage.call("why", run.id, "--cluster", stage.cluster, "-o", "json")
    assert done.returncode in (0, 1), done.stderr
    return dict(json.loads(done.stdout))


class Fault(NamedTuple):
    """`settings` of the job, what happens when `phase` is reached, and what is right then.

    `phase` is "queue", a role whose program has started, or "training". `before` is the cause that ended the first of
    several attempts, `node` the one that a certain cause names.
    """

    settings: tuple[str, ...] = ()
    phase: str = "training"
    happens: Callable[[Stage, RunDir], object] = lambda stage, run: None
    state: str = "failed"
    cause: str = "killed"
    who: tuple[str, int] | None = None
    words: str = ""
    attempts: int = 1
    steps: int = 1000
    before: str = ""
    node: str | None = None
    options: tuple[str, ...] = ()


def sends(number: signal.Signals, role: str, rank: int = 0) -> Callable[[Stage, RunDir], object]:
    return lambda stage, run: os.kill(program_of(run, role, rank), number)


def cancels(stage: Stage, run: RunDir) -> None:
    assert stage.call("cancel", "--yes", "--cluster", stage.cluster, run.id).returncode == 0


def loses_a_node(stage: Stage, run: RunDir) -> None:
    """Slurm loses the last node, which comes back once the job has ended."""
    stage.slurm("scontrol", "update", "NodeName=node4", "State=DOWN", "Reason=off")
    try:
        job = stage.job_id(run)
        wait_until(lambda: stage.slurm("squeue", "-h", "-j", job, "-t", "running", "-o", "%i") == "", 60, "the end")
    finally:
        wait_until(lambda: comes_back(stage), 30, "the node")


def comes_back(stage: Stage) -> bool:
    """Whether Slurm takes the lost node back; it refuses if the node has registered again by itself."""
    try:
        stage.slurm("scontrol", "update", "NodeName=node4", "State=RESUME")
    except subprocess.CalledProcessError:
        return not stage.slurm("sinfo", "-h", "-n", "node4", "-o", "%t").startswith("down")
    return True


def preempts(stage: Stage, run: RunDir) -> None:
    text = 'workload = "command"\nargv = ["sleep", "1"]\n[resources]\nnodes = 4\nexclusive = true\n'
    job = stage.write_job("urgent", f'{text}partition = "urgent"\n')
    assert stage.call("submit", job, "--cluster", stage.cluster, "--wait").returncode == 0


def leaves_the_servers(stage: Stage, run: RunDir) -> None:
    """Cancel while the trainers have finished and a server has not ended yet."""
    wait_until(lambda: len([pid for pid in alive(run) if "serve.py" in command_of(pid)]) == 1, 60, "the last server")
    cancels(stage, run)


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    except OSError:
        return ""


def never(role: str) -> str:
    return f"role.{role}.restart=never"


QUICK = ("role.store.ready_within=4", "role.features.ready_within=4")
NOTHING = '["sleep", "1000"]'
WEAK = ("resources.partition=preemptable", "resources.exclusive=true")
FIRST_NEVER_READY = (
    'role.store.program=["sh", "-c", "[ $CLUSTERCTL_ATTEMPT -gt 0 ] || sleep 1000; exec python serve.py {port}"]'
)
FIRST_ENDLESS = (  # what ends the first attempt may take a while
    'role.trainer.program=["sh", "-c", '
    '"exec python train.py $(($CLUSTERCTL_ATTEMPT ? 5 : 1000)) {store.addresses} {features.addresses}"]'
)
SHORT = ("resources.time=20s", "resources.warning=0", "resources.requeue=false")
HUNG = ("watchdog.floor=5", "watchdog.action=fail")
FAULTS = {
    "store killed": Fault((never("store"),), happens=sends(signal.SIGKILL, "store"), who=("store", 0)),
    "features killed": Fault((never("features"),), happens=sends(signal.SIGKILL, "features"), who=("features", 0)),
    "trainer killed": Fault((never("trainer"),), happens=sends(signal.SIGKILL, "trainer", 1), who=("trainer", 1)),
    "store asked to leave": Fault(happens=sends(signal.SIGTERM, "store"), who=("store", 0), words="SIGTERM"),
    "all start again": Fault(
        happens=sends(signal.SIGKILL, "store"), state="finished", cause="finished", attempts=2, steps=40
    ),
    "one starts again": Fault(
        ("role.features.restart=role", 'role.trainer.program=["python", "train.py", "60", "{store.addresses}"]'),
        happens=sends(signal.SIGKILL, "features"),
        state="finished",
        cause="finished",
    ),
    "store hung": Fault(HUNG, happens=sends(signal.SIGSTOP, "store"), cause="hang"),
    "features hung": Fault(HUNG, happens=sends(signal.SIGSTOP, "features"), cause="hang"),
    "trainer hung": Fault(
        HUNG, happens=lambda stage, run: [sends(signal.SIGSTOP, "trainer", n)(stage, run) for n in (0, 1)], cause="hang"
    ),
    "store never ready": Fault(
        (*QUICK, f"role.store.program={NOTHING}"),
        "",
        cause="user-error",
        who=("store", 0),
        words="not ready within 4 s",
    ),
    "features never ready": Fault(
        (*QUICK, f"role.features.program={NOTHING}"),
        "",
        cause="user-error",
        who=("features", 0),
        words="not ready within 4 s",
    ),
    "store on the wrong port": Fault(
        (*QUICK, 'role.store.program=["python", "serve.py", "0"]'),
        "",
        cause="user-error",
        who=("store", 0),
        words="refused",
    ),
    "features on the wrong port": Fault(
        (*QUICK, 'role.features.program=["python", "serve.py", "0"]'),
        "",
        cause="user-error",
        who=("features", 0),
        words="refused",
    ),
    "store ends early with 0": Fault(
        ('role.store.program=["sh", "-c", "python serve.py {port} & sleep 9; kill $!"]',),
        "",
        cause="user-error",
        who=("store", 0),
        words="exited with 0 while features and trainer need it",
    ),
    "features ends at once with 0": Fault(
        ('role.features.program=["true"]',),
        "",
        cause="user-error",
        who=("features", 0),
        words="exited with 0 before it was ready",
    ),
    "trainer fails": Fault(
        ('role.trainer.program=["sh", "-c", "exit 3"]', "role.trainer.nodes=1"),
        "",
        cause="user-error",
        who=("trainer", 0),
        words="exited with 3",
    ),
    "a program that does not exist": Fault(
        ('role.trainer.program=["no-such-program"]', "role.trainer.nodes=1"),
        "",
        cause="user-error",
        who=("trainer", 0),
        words="cannot run no-such-program",
    ),
    "cancelled before it is ready": Fault(
        (f"role.store.program={NOTHING}",), "store", cancels, "cancelled", "cancelled"
    ),
    "cancelled in training": Fault((), "training", cancels, "cancelled", "cancelled"),
    "cancelled in the queue": Fault((), "queue", cancels, "cancelled", "cancelled", attempts=0, options=("--hold",)),
    "cancelled between two roles": Fault(
        (f"role.features.program={NOTHING}",), "features", cancels, "cancelled", "cancelled"
    ),
    "cancelled while the servers end": Fault(
        ("role.store.grace=60", "role.store.env.IGNORES_TERM=1"),
        "",
        leaves_the_servers,
        "cancelled",
        "cancelled",
        steps=1,
    ),
    "a node lost": Fault(("resources.requeue=false",), "training", loses_a_node, cause="node-failure", node="node4"),
    "a node lost and started again": Fault(
        (FIRST_ENDLESS,), "training", loses_a_node, "finished", "finished", attempts=2, before="node-failure"
    ),
    "a node lost before it is ready": Fault(
        (FIRST_NEVER_READY,), "store", loses_a_node, "finished", "finished", attempts=2, steps=5, before="node-failure"
    ),
    "preempted in training": Fault(
        (*WEAK, FIRST_ENDLESS), "training", preempts, "finished", "finished", attempts=2, before="preempted"
    ),
    "preempted before it is ready": Fault(
        (*WEAK, FIRST_NEVER_READY), "store", preempts, "finished", "finished", attempts=2, steps=5, before="preempted"
    ),
    "time limit in training": Fault(SHORT, "", state="timed-out", cause="time-limit"),
    "time limit before it is ready": Fault(
        (*SHORT, f"role.store.program={NOTHING}"), "", state="timed-out", cause="time-limit"
    ),
    "a program that ignores TERM": Fault(
        (never("trainer"), "env.IGNORES_TERM=1"), happens=sends(signal.SIGKILL, "trainer", 0), who=("trainer", 0)
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_of_one_role_has_the_right_outcome_and_cause(stage: Stage, name: str) -> None:
    fault = FAULTS[name]
    words = [*fault.options, *(word for one in fault.settings for word in ("--set", one))]
    run = stage.submit(written(stage, fault.steps), *words)
    if fault.phase == "training":
        training(stage, run)
    elif fault.phase in ("store", "features"):
        wait_until(lambda: has_program(run, fault.phase), 60, "the program")
    fault.happens(stage, run)
    status = stage.wait_for_state(run, fault.state, seconds=120)
    assert status["attempts"] == fault.attempts
    wait_until(lambda: not alive(run), GRACE + 5, "the end of all processes")
    found = why(stage, run)
    assert found["class"] == fault.cause, found
    if fault.who:
        assert (found["role"], found["role_rank"]) == fault.who, found
        others = {(one["role"], one["role_rank"]) for one in found["secondary"]}
        everyone = {("store", 0), ("features", 0), ("trainer", 0), ("trainer", 1)}
        assert everyone - {fault.who} >= others, found
        assert found["certainty"] in ("certain", "likely")
    assert fault.words in found["cause"], found
    if fault.before:
        assert [one["class"] for one in found["history"]] == [fault.before], found
    if fault.node:  # the emulator does not report which one it was
        assert (found["node"] or fault.node, found["certainty"]) == (fault.node, "certain"), found
        assert found["node"] or stage.cluster == "local", found
    if fault.state == "finished":
        shown = stage.call("status", run.id, "--cluster", stage.cluster, "--roles").stdout
        lines = [line.split() for line in shown.splitlines() if line.startswith(run.id)]
        assert [line[1:3] for line in lines[1:]] == [["store", "1"], ["features", "1"], ["trainer", "2"]], shown
        assert (
            "trainer r01 node4 step" in stage.call("logs", run.id, "--cluster", stage.cluster, "--no-collapse").stdout
        )

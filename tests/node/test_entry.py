"""The entry point of every task: what it records, and how it ends."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from support.recorded import recorded

from clusterctl.engine.workloads import module_of
from clusterctl.launcher.observe.logs import is_stamped, without_stamp
from clusterctl.shared.record.files import write_json
from clusterctl.shared.record.layout import RunDir
from clusterctl.shared.spec import WORKLOADS, CommandTrain, Job, to_record

# A stand-in workload: the test is about the entry point around it.
WORKLOAD = """
import sys
from clusterctl.shared.errors import Cause, TaskError
def main(context):
    {body}
"""


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    run = RunDir(tmp_path / "x-20260102-030405-abcd")
    (run.path / "attempts" / "0").mkdir(parents=True)
    job = Job(name="x", workload="command", argv=("true",), train=CommandTrain())
    write_json(run.run_json, {"job": to_record(job)})
    return run


def started(run: RunDir, body: str) -> tuple[subprocess.CompletedProcess[str], list[dict[str, Any]]]:
    (run.path / "workload.py").write_text(WORKLOAD.format(body=body))
    program = (
        "import sys, workload\n"
        "from clusterctl.shared.node.entry import run_task\n"
        "sys.modules['clusterctl.engine.workloads.command'] = workload\n"
        "run_task(sys.argv[1])\n"
    )
    environment = {**os.environ, "CLUSTERCTL_RUN_DIR": str(run.path), "CLUSTERCTL_ATTEMPT": "0"}
    environment |= {"SLURM_PROCID": "2", "SLURM_NTASKS": "4", "PYTHONPATH": str(run.path)}
    done = subprocess.run(
        [sys.executable, "-c", program, str(run.path)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return done, list(recorded(run.attempt(0), 2))


def test_a_program_that_succeeds_records_its_states_and_exit_code_0(run: RunDir) -> None:
    done, events = started(run, "pass")
    assert done.returncode == 0
    assert [event["event"] for event in events] == ["began", "stage", "exit"]
    assert events[-1]["code"] == 0


def test_an_exception_is_recorded_with_its_traceback(run: RunDir) -> None:
    done, events = started(run, "raise ValueError('boom')")
    assert done.returncode == 1
    raised = next(event for event in events if event["event"] == "exception")
    assert (raised["type"], raised["message"], raised.get("cause")) == ("ValueError", "boom", None)
    assert "workload.py" in raised["traceback"]
    assert "ValueError: boom" in done.stderr


TRAINING = "from clusterctl.shared.record.states import State; context.events.state(State.TRAINING); "
LOST = "RuntimeError('[/b/third_party/gloo/gloo/transport/tcp/pair.cc:537] Read error: Connection reset by peer')"
OF_TORCH = "type('{}', (RuntimeError,), {{'__module__': 'torch.distributed'}})({!r})"


@pytest.mark.parametrize(
    ("error", "mark"),
    [
        (LOST, "cut"),
        (OF_TORCH.format("DistNetworkError", "recv failed: Connection reset by peer"), "cut"),
        (OF_TORCH.format("DistBackendError", "NCCL error: ncclRemoteError: remote process exited"), "cut"),
        (OF_TORCH.format("DistBackendError", "NCCL error: ncclInvalidUsage: Duplicate GPU detected"), "ended"),
        (OF_TORCH.format("OutOfMemoryError", "out of memory"), "ended"),
        ("ValueError('[/b/third_party/gloo/gloo/transport/tcp/pair.cc:537] quoted')", "ended"),
        ("RuntimeError('see [x], in /gloo/transport/')", "ended"),
        ("type('DistNetworkError', (RuntimeError,), {})('of the user')", "ended"),
    ],
)
def test_a_rank_that_lost_its_connections_while_training_leaves_a_mark_of_its_own(
    run: RunDir, error: str, mark: str
) -> None:
    done, _ = started(run, f"{TRAINING}raise {error}")
    assert done.returncode == 1
    assert [path.name for path in run.attempt(0).marks.iterdir()] == [f"00002.{mark}"]


NVML = """import types
class NVMLError(Exception): pass
NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC = 1, 0
nvmlInit = lambda: None
nvmlDeviceGetCount = lambda: 1
nvmlDeviceGetHandleByIndex = lambda index: index
nvmlDeviceGetUUID = lambda handle: "GPU-aaaa"
nvmlGpmQueryDeviceSupport = lambda handle: types.SimpleNamespace(isSupportedDevice=0)
nvmlDeviceGetTotalEccErrors = lambda handle, kind, counter: {count}
"""
ECC = "CUDA error: uncorrectable ECC error encountered"


@pytest.mark.parametrize(("count", "broken"), [("1", True), ("0", False), ("1 / 0", False)])
def test_a_rank_whose_gpu_is_broken_leaves_a_mark_with_its_node(
    run: RunDir, monkeypatch: pytest.MonkeyPatch, count: str, broken: bool
) -> None:
    """With a stand-in for NVML; the last one fails."""
    monkeypatch.setenv("SLURMD_NODENAME", "node-7.example")
    (run.path / "pynvml.py").write_text(NVML.format(count=count))
    done, events = started(run, f"raise RuntimeError({ECC!r})")
    assert (done.returncode, "cannot ask the GPUs" in done.stderr) == (1, "/" in count)
    mark = "00002.node-7.example.broken" if broken else "00002.ended"
    assert [path.name for path in run.attempt(0).marks.iterdir()] == [mark]
    raised = next(event for event in events if event["event"] == "exception")
    assert raised.get("cause") == ("node-failure" if broken else None)
    assert ECC in raised["traceback"]
    assert ("GPU 0 of node-7.example" in raised["message"]) == broken


def test_a_rank_that_cannot_meet_the_others_has_failed(run: RunDir) -> None:
    started(run, f"raise {LOST}")
    assert [path.name for path in run.attempt(0).marks.iterdir()] == ["00002.ended"]


def test_an_error_that_the_user_can_fix_has_no_traceback(run: RunDir) -> None:
    done, events = started(run, "raise TaskError('no data at /x', 'set data.root', Cause.DATA)")
    assert done.returncode == 1
    lines = done.stderr.encode().splitlines()
    assert all(map(is_stamped, lines))
    assert [without_stamp(line) for line in lines] == [b"error: no data at /x", b"hint: set data.root"]
    assert [event["event"] for event in events][-2:] == ["exception", "exit"]
    assert events[-2]["cause"] == "data"


def test_a_missing_module_is_reported_without_a_traceback(run: RunDir) -> None:
    done, _ = started(run, "import no_such_torch")
    assert done.returncode == 1
    assert f"error: {sys.executable} has no module no_such_torch" in done.stderr
    assert "-m pip install torch torch_geometric numpy scipy; or set `python`" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_exit_code_passes_through(run: RunDir) -> None:
    done, events = started(run, "sys.exit(3)")
    assert (done.returncode, events[-1]["code"]) == (3, 3)


def test_atexit_handlers_run_in_the_task_and_in_forked_children(run: RunDir) -> None:
    body = """
    import atexit, os, threading, time
    atexit.register(print, "at exit")
    if os.fork() == 0:
        sys.exit(5)
    print("child", os.waitstatus_to_exitcode(os.wait()[1]))
    threading.Thread(target=lambda: (time.sleep(0.2), print("thread"))).start()
    sys.exit(4)
    """
    done, _ = started(run, body)
    assert done.returncode == 4
    assert [line.split()[-1] for line in done.stdout.splitlines()] == ["exit", "5", "thread", "exit"]


def test_a_run_directory_that_the_node_cannot_see_is_reported(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "elsewhere")
    run.attempt(0).path.mkdir(parents=True)
    done, _ = started(run, "pass")
    assert done.returncode == 1
    assert "must be shared" in done.stderr


@pytest.mark.parametrize("workload", WORKLOADS)
def test_every_workload_has_a_module(workload: str) -> None:
    assert find_spec(module_of(workload))

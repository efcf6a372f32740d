"""Several ranks on this machine, started as by a batch script: for tests of what ranks do together."""

from __future__ import annotations

import atexit
import json
import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from clusterctl.shared.record.files import read_lines, write_json, write_text
from clusterctl.shared.record.layout import Attempt, RunDir
from clusterctl.shared.spec import Job, to_record

_REPOSITORY = Path(__file__).resolve().parents[2]
CORA = _REPOSITORY / "data" / "cora"
IMDB = _REPOSITORY / "data" / "IMDB-BINARY"
_FORKED = Path(__file__).with_name("forked_ranks.py")
ENTRY = ("-m", "clusterctl.runs")  # and the run directory


def claim(attempt: Attempt) -> None:
    """Create what the batch script creates before any task starts."""
    attempt.path.mkdir(parents=True, exist_ok=True)
    if not attempt.secret.exists():
        write_text(attempt.secret, secrets.token_hex(32))


def environments(attempt: Attempt, tasks_per_node: Sequence[int]) -> list[dict[str, str]]:
    """The environment that Slurm sets for each rank, on nodes with the given numbers of tasks."""
    claim(attempt)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "TORCHELASTIC_"))}
    places = [(node, local) for node, count in enumerate(tasks_per_node) for local in range(count)]
    return [
        kept
        | {
            "SLURM_PROCID": str(rank),
            "SLURM_LOCALID": str(local),
            "SLURM_NODEID": str(node),
            "SLURM_NTASKS": str(len(places)),
            "SLURM_STEP_NUM_NODES": str(len(tasks_per_node)),
            "SLURM_STEP_TASKS_PER_NODE": ",".join(map(str, tasks_per_node)),
            "CLUSTERCTL_RUN_DIR": str(attempt.path.parents[1]),
            "CLUSTERCTL_ATTEMPT": attempt.path.name,
            "OMP_NUM_THREADS": "1",
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",  # as the batch script sets it
            "PYTHONWARNINGS": "error,ignore:`torch.jit.script` is:DeprecationWarning,"  # of PyG
            "ignore:Failing to pass a value to the 'type_params':DeprecationWarning",  # of PyG, on Python 3.13
        }
        for rank, (node, local) in enumerate(places)
    ]


def run_program(program: str, attempt: Attempt, tasks_per_node: Sequence[int], timeout: float = 300) -> list[str]:
    """Run Python text as every rank and return the outputs. Fails with the stderr of the first failing rank."""
    done = run_ranks(program, environments(attempt, tasks_per_node), timeout)
    for rank, (code, _, errors) in enumerate(done):
        assert code == 0, f"rank {rank} exited with {code}:\n{errors}"
    return [output for _, output, _ in done]


def run_job(job: Job, run: RunDir, tasks_per_node: Sequence[int], timeout: float = 900) -> list[tuple[int, str, str]]:
    """Run `job` as attempt 0 of `run` with the real entry point; return each rank's exit code, stdout and stderr."""
    environment = environments(run.attempt(0), tasks_per_node)
    write_json(run.run_json, {"job": to_record(job)})
    if job.workload == "command":  # whose processes import little
        return _run([sys.executable, *ENTRY, str(run.path)], environment, timeout)
    return run_ranks(_AS_MAIN.format(module=ENTRY[1], run=str(run.path)), environment, timeout)


class Losses(list[float]):
    """Takes the place of a task's metrics in a program, and keeps the loss of every step."""

    def write(self, loss: float | None = None, **_: object) -> None:
        if loss is not None:
            self.append(loss)


def results_of(program: str, folder: Path) -> dict[int, list[dict[str, Any]]]:
    """Number of ranks, one and three on uneven nodes -> what each rank prints in its last line, as JSON."""
    found = {}
    for tasks_per_node in ([1], [1, 2]):
        ranks = sum(tasks_per_node)
        outputs = run_program(program, RunDir(folder / f"on-{ranks}").attempt(0), tasks_per_node)
        found[ranks] = [json.loads(output.splitlines()[-1]) for output in outputs]
    return found


def metrics_of(run: RunDir) -> list[dict[str, float]]:
    return list(read_lines(run.attempt(0).metrics))


def losses_of(run: RunDir) -> list[float]:
    """The loss of every step."""
    return [record["loss"] for record in metrics_of(run) if "loss" in record]


_AS_MAIN = """
import runpy, sys
sys.argv[1:] = [{run!r}]
runpy.run_module({module!r}, run_name="__main__", alter_sys=True)
"""
_FORKING: dict[str, subprocess.Popen[str]] = {}  # by the module that was imported


def run_ranks(program: str, ranks: list[dict[str, str]], timeout: float) -> list[tuple[int, str, str]]:
    """Run Python text in each of these environments; return the exit codes, stdouts and stderrs.

    Each is a fork of an interpreter with torch, which is kept for later calls.
    """
    imports = "torch_geometric" if re.search(r"^(?:from|import) torch_geometric\b", program, re.MULTILINE) else "torch"
    process = _FORKING.get(imports) or _FORKING.setdefault(imports, _start_forking(imports, ranks[0]))
    with tempfile.TemporaryDirectory() as folder:
        files = [(Path(folder, f"{rank}.out"), Path(folder, f"{rank}.err")) for rank in range(len(ranks))]
        request = [
            {"environment": own, "output": str(output), "errors": str(errors)}
            for own, (output, errors) in zip(ranks, files, strict=True)
        ]
        assert process.stdin is not None
        assert process.stdout is not None
        timer = threading.Timer(timeout, os.killpg, (process.pid, signal.SIGKILL))
        timer.start()
        try:
            process.stdin.write(json.dumps({"program": program, "ranks": request}) + "\n")
            process.stdin.flush()
            codes = json.loads(process.stdout.readline() or "null")
        finally:
            timer.cancel()
        if codes is None:
            _FORKING.pop(imports).wait()
            raise AssertionError(f"no end after {timeout} s: {[errors.read_text() for _, errors in files]}")
        return [
            (code, output.read_text(), errors.read_text()) for code, (output, errors) in zip(codes, files, strict=True)
        ]


def _start_forking(imports: str, environment: dict[str, str]) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, _FORKED, imports],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    atexit.register(process.communicate)  # it exits when its stdin is closed
    return process


def _run(argv: list[str], environment: list[dict[str, str]], timeout: float) -> list[tuple[int, str, str]]:
    processes = [
        subprocess.Popen(argv, env=own, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for own in environment
    ]
    try:
        return [
            (process.returncode, output, errors)
            for process in processes
            for output, errors in [process.communicate(timeout=timeout)]
        ]
    finally:
        for process in processes:
            process.kill()
            process.wait()

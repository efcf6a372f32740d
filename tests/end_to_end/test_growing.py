"""Runs that the kernel or the time limit ends go on with more, on a real Slurm with cgroups."""

from __future__ import annotations

import json
from shlex import quote

import pytest
from support.scenario import Stage

from clusterctl.shared.record.files import read_json

pytestmark = [pytest.mark.long, pytest.mark.parametrize("back_end", ["contained"], indirect=True)]

JOB = 'workload = "command"\nargv = ["python", "-c", {}]\n[restart.grow]\nmemory = 2\ntime = 3\n[resources]\n{}\n'
# Counts to three, saves each number, and holds 300 MiB from the second one on.
HUNGRY = """
import os, pathlib, time
saved = pathlib.Path("count")
count = int(saved.read_text()) if saved.exists() else 0
print("going on from", count, flush=True)
while count < 3:
    count += 1
    saved.write_text(str(count))
    held = bytearray(b"x") * ((300 << 20) if count > 1 else 1)
    time.sleep(1)
"""
# Ten ways to need more than `MEMORY`, most of them after a first step that is saved: (resources, attempts, program).
SAVED = """
import os, pathlib, time
rank = os.environ.get("RANK", "0")
saved = pathlib.Path("step-" + rank)
saved.touch()
time.sleep(1.5)
"""
MEMORY = 'memory = "200M"'
TEN = {
    "bytes": (MEMORY, 2, 'x = bytearray(b"x") * (300 << 20)'),
    "a leak": (
        MEMORY,
        2,
        'x = []\nfor _ in range(15):\n    x.append(bytearray(b"x") * (20 << 20))\n    time.sleep(0.1)',
    ),
    "a spike after a while": (MEMORY, 2, 'time.sleep(3)\nx = bytearray(b"x") * (330 << 20)\ndel x\ntime.sleep(1)'),
    "a private mapping": (
        MEMORY,
        2,
        "import mmap\nx = mmap.mmap(-1, 300 << 20, mmap.MAP_PRIVATE)\nfor n in range(75 << 10):\n    x[n << 12] = 1",
    ),
    "a file in memory": (
        MEMORY,
        2,
        'file = open(os.memfd_create("x"), "wb")\nfor _ in range(300):\n    file.write(bytes(1 << 20))\nfile.flush()',
    ),
    "numpy": (MEMORY, 2, "import numpy\nx = numpy.ones(300 << 17)"),
    "two ranks together": (MEMORY + "\ntasks_per_node = 2", 2, 'x = bytearray(b"x") * (150 << 20)\ntime.sleep(2)'),
    "the second node's rank": (
        MEMORY + "\nnodes = 2",
        2,
        'x = bytearray(b"x") * ((300 if rank == "1" else 1) << 20)\ntime.sleep(2)',
    ),
    "more than twice as much": (MEMORY, 3, 'x = bytearray(b"x") * (600 << 20)'),
    "a data loader's worker": (
        'memory = "600M"',
        2,
        """
import torch
class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, n):
        return torch.ones(250 << 18).sum()
if __name__ == "__main__":
    for batch in torch.utils.data.DataLoader(Data(), num_workers=1):
        print(batch.sum(), flush=True)
""",
    ),
}
SLOW = "import time; time.sleep(100)"


def test_a_run_out_of_memory_goes_on_with_more_from_where_it_was(stage: Stage) -> None:
    run = stage.submit(stage.write_job("hungry", JOB.format(json.dumps(HUNGRY), 'memory = "200M"')))
    status = stage.wait_for_state(run, "finished", seconds=120)
    assert (status["attempts"], status["requested"]["memory"]) == (2, 400 << 20)
    assert 300 << 20 < status["used"]["memory"] < 400 << 20
    assert "going on from 2" in stage.log(run, 0, attempt=1)
    why = json.loads(stage.call("why", run.id, "--cluster", stage.cluster, "-o", "json").stdout)
    assert [(past["class"], past["went_on_with"]) for past in why["history"]] == [
        ("out-of-memory", "400M instead of 200M of memory")
    ]


@pytest.mark.parametrize("kind", TEN)
def test_ten_of_ten_programs_out_of_memory_go_on_with_more(stage: Stage, kind: str) -> None:
    resources, attempts, program = TEN[kind]
    run = stage.submit(stage.write_job("hungry", JOB.format(json.dumps(SAVED + program), resources)))
    status = stage.wait_for_state(run, "finished", "failed", seconds=300)
    assert (status["stage"], status["attempts"]) == ("finished", attempts), stage.call("why", run.id).stdout
    assert (run.work / "step-0").exists()


# A worker that saves its first step, and then holds more than the job has; its launcher only has its exit code.
WORKER = """
import os, pathlib
if os.environ.get("RANK", "0") == "0":
    pathlib.Path("step-0").touch()
    x = bytearray(b"x") * (700 << 20)
"""
SPAWN = """
import sys
import torch.multiprocessing
def work(number):
    sys.exit(exec(open("worker.py").read()))
if __name__ == "__main__":
    torch.multiprocessing.spawn(work, nprocs=1)
"""


@pytest.mark.parametrize(
    "words",
    ["-m torch.distributed.run --standalone --nproc-per-node 2 worker.py", "spawn.py"],
    ids=["torchrun", "spawn"],
)
def test_a_launcher_whose_worker_is_out_of_memory_goes_on_with_more(stage: Stage, words: str) -> None:
    files = {"worker.py": WORKER, "spawn.py": SPAWN}
    made = f"from pathlib import Path\nfor name, text in {files!r}.items(): Path(name).write_text(text)"
    program = f"python -c {quote(made)} && exec python {words}"
    job = f'workload = "command"\nargv = ["bash", "-c", {json.dumps(program)}]\n[restart.grow]\nmemory = 2\n'
    run = stage.submit(stage.write_job("launched", job + '[resources]\nmemory = "600M"\n'))
    status = stage.wait_for_state(run, "finished", "failed", seconds=200)
    assert (status["stage"], status["attempts"]) == ("finished", 2), stage.call("why", run.id).stdout
    assert status["requested"]["memory"] == 1200 << 20


def test_a_run_out_of_time_goes_on_with_more(stage: Stage) -> None:
    run = stage.submit(stage.write_job("slow", JOB.format(json.dumps(SLOW), 'time = "1m"')))
    status = stage.wait_for_state(run, "finished", seconds=400)
    assert (status["attempts"], status["requested"]["time"]) == (2, 180)
    first, second = (read_json(attempt.host_json)["job_id"] for attempt in run.attempts())
    assert first != second

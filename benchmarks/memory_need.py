"""How accurate the reported memory need of a run is, with 30 unlike programs, each in a cgroup of its own.

Each program runs once without a limit, observed as a run is (`MemoryNeed`, twice a second); then with 10 % more memory
than reported, where it must live, and with 10 % less, where it must be killed. Aim: 27 of 30. With
`--processes`, the need is taken from the processes instead of the cgroup, as where Slurm has none. Needs root and
version 1 of cgroups, and no swap.

python benchmarks/memory_need.py [--processes] [--only NAME ...]
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from clusterctl.engine.task.node_usage import MemoryNeed

if TYPE_CHECKING:
    from collections.abc import Iterator

GROUPS = Path("/sys/fs/cgroup/memory")
LOOK_SECONDS = 0.5
PATIENCE_SECONDS = 300.0
MARGIN = 0.1
MIB = 2**20

PREAMBLE = """
import gc, json, mmap, multiprocessing, os, random, subprocess, sys, threading, time, zlib
MIB = 1 << 20
def hold(size):
    return bytearray(b"x") * (size * MIB)
def write(path, size):
    with open(path, "wb") as file:
        for _ in range(size):
            file.write(os.urandom(1024) * 1024)
"""
PROGRAMS = """
# bytes
x = hold(300)
time.sleep(1.2)
# a list of numbers
x = [float(n) for n in range(6_000_000)]
time.sleep(1.2)
# a dict of strings
x = {str(n): str(-n) for n in range(1_200_000)}
time.sleep(1.2)
# parsed JSON
text = "[" + ",".join('{"a": [1.5, 2.5]}' for _ in range(500_000)) + "]"
x = json.loads(text)
time.sleep(1.2)
# compression
x = zlib.compress(os.urandom(MIB) * 100, 1)
time.sleep(1)
# a spike of 0.2 s
time.sleep(1)
x = hold(400)
time.sleep(0.2)
del x
time.sleep(1.2)
# a spike at the end
x = hold(60)
time.sleep(1.3)
y = hold(350)
# several spikes
for size in (100, 300, 200):
    x = hold(size)
    del x
    time.sleep(0.7)
# a leak
x = []
for _ in range(25):
    x.append(hold(16))
    time.sleep(0.1)
# a sawtooth
for _ in range(4):
    x = []
    for _ in range(10):
        x.append(hold(25))
        time.sleep(0.05)
# untouched pages
import numpy
x = numpy.zeros(256 * MIB)
x[: 24 * MIB] = 1
time.sleep(1.2)
# numpy
import numpy
x = numpy.random.rand(16 * MIB)
y = x * 2 + x
time.sleep(1)
# numpy's sort
import numpy
x = numpy.random.rand(12 * MIB)
y = numpy.sort(x)
time.sleep(1)
# a memory-mapped array
import numpy
write("a", 200)
x = numpy.memmap("a")
x.sum()
y = hold(120)
time.sleep(1)
# a private mapping that is written
write("a", 200)
with open("a", "r+b") as file:
    x = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE)
    for place in range(0, len(x), 4096):
        x[place] = 1
time.sleep(1.2)
# a file that is read
write("a", 300)
for _ in range(2):
    with open("a", "rb") as file:
        while file.read(MIB):
            pass
x = hold(150)
time.sleep(1)
# a file that is removed
write("a", 300)
os.remove("a")
x = hold(150)
time.sleep(1.2)
# a file in shared memory
path = f"/dev/shm/need-{os.getpid()}"
write(path, 200)
time.sleep(1.2)
os.remove(path)
# shared memory of processes
from multiprocessing import shared_memory
x = shared_memory.SharedMemory(create=True, size=200 * MIB)
x.buf[:] = b"x" * len(x.buf)
def read():
    x.buf[:5]
    time.sleep(1.2)
readers = [multiprocessing.Process(target=read) for _ in range(3)]
[one.start() for one in readers]
[one.join() for one in readers]
x.unlink()
# forked readers
x = hold(250)
for _ in range(4):
    if os.fork() == 0:
        sum(x[::4096])
        time.sleep(1.5)
        os._exit(0)
for _ in range(4):
    os.wait()
# forked writers
x = hold(80)
for _ in range(4):
    if os.fork() == 0:
        x[:] = hold(80)
        time.sleep(1.5)
        os._exit(0)
for _ in range(4):
    os.wait()
# a pool
def work(n):
    x = hold(60)
    time.sleep(0.4)
with multiprocessing.Pool(3) as pool:
    pool.map(work, range(6))
# threads
def work():
    x = hold(40)
    time.sleep(1)
threads = [threading.Thread(target=work) for _ in range(6)]
[one.start() for one in threads]
[one.join() for one in threads]
# a short child
time.sleep(1)
subprocess.run([sys.executable, "-c", "x = bytearray(b'x') * (300 << 20)"], check=True)
time.sleep(1)
# a long child
program = "import time; x = bytearray(b'x') * (300 << 20); time.sleep(1.5)"
subprocess.run([sys.executable, "-c", program], check=True)
# torch
import torch
x = torch.randn(4000, 4000)
y = x @ x
time.sleep(1)
# torch with Adam
import torch
model = torch.nn.Sequential(*(torch.nn.Linear(1500, 1500) for _ in range(5)))
optimizer = torch.optim.Adam(model.parameters())
for _ in range(3):
    optimizer.zero_grad()
    model(torch.randn(512, 1500)).square().mean().backward()
    optimizer.step()
# torch's data loader
import torch
class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 400
    def __getitem__(self, n):
        return torch.randn(60000)
for batch in torch.utils.data.DataLoader(Data(), batch_size=32, num_workers=2):
    batch.sum()
# a data loader on a large list
import torch
class Data(torch.utils.data.Dataset):
    def __init__(self):
        self.x = [float(n) for n in range(4_000_000)]
    def __len__(self):
        return 400
    def __getitem__(self, n):
        return torch.tensor(self.x[n * 9000 : (n + 1) * 9000])
for batch in torch.utils.data.DataLoader(Data(), batch_size=16, num_workers=2):
    batch.sum()
# PyG
import torch, torch_geometric.nn
x, edges = torch.randn(60_000, 64), torch.randint(0, 60_000, (2, 600_000))
model = torch_geometric.nn.SAGEConv(64, 64)
for _ in range(2):
    model(x, edges).sum().backward()
"""


class Ran(NamedTuple):
    """How a program ended, and its reported need; `code` is None if it had to be ended after PATIENCE_SECONDS."""

    code: int | None
    need: int


@contextmanager
def group(limit: int | None) -> Iterator[Path]:
    """A cgroup with nothing in it, which ends what is left in it: a pool's workers outlive a pool that was killed."""
    folder = Path(tempfile.mkdtemp(prefix="clusterctl-need-", dir=GROUPS))
    try:
        if limit is not None:
            (folder / "memory.limit_in_bytes").write_text(str(limit))
        yield folder
    finally:
        while end_all(folder):
            time.sleep(0.05)
        folder.rmdir()


def end_all(folder: Path) -> bool:
    """Kill what is in this cgroup; returns whether there was anything."""
    found = (folder / "cgroup.procs").read_text().split()
    for pid in found:
        with suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)
    return bool(found)


def was_killed(folder: Path) -> bool:
    """Whether the kernel has killed a process of this cgroup for want of memory."""
    return "oom_kill 0" not in (folder / "memory.oom_control").read_text().splitlines()


def run(program: str, limit: int | None = None, *, processes: bool = False) -> Ran:
    with tempfile.TemporaryDirectory() as work, group(limit) as folder:
        joined = f"open({str(folder / 'cgroup.procs')!r}, 'w').write('0')\n"
        need = MemoryNeed(None if processes else folder)
        environment = {**os.environ, "MALLOC_ARENA_MAX": "2", "OMP_NUM_THREADS": "2"}
        started = subprocess.Popen(
            [sys.executable, "-c", joined + PREAMBLE + program],
            cwd=work,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            with suppress(subprocess.TimeoutExpired):
                code = started.wait(LOOK_SECONDS)
                if not processes:
                    need.look()
                return Ran(-signal.SIGKILL if was_killed(folder) else code, need.bytes)
            late = time.monotonic() > deadline
            if late or was_killed(folder):  # a pool waits for ever for a worker that was killed
                end_all(folder)
                started.wait()
                return Ran(None if late else -signal.SIGKILL, need.bytes)
            need.look(Path("/proc", pid) for pid in (folder / "cgroup.procs").read_text().split())


def programs() -> dict[str, str]:
    """Name -> text."""
    sections = [section.partition("\n") for section in PROGRAMS.split("# ")]
    return {name: text for name, _, text in sections if text}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", action="store_true")
    parser.add_argument("--only", nargs="+", default=list(programs()), metavar="NAME")
    typed = parser.parse_args()
    good, unfinished = 0, []
    for name in typed.only:
        free = run(programs()[name], processes=typed.processes)
        more, less = (run(programs()[name], int(free.need * factor)) for factor in (1 + MARGIN, 1 - MARGIN))
        lives, dies = more.code == 0, less.code not in (0, None)
        if free.code is None or more.code is None or less.code is None:
            verdict = f"did not finish in {PATIENCE_SECONDS:.0f} s"
            unfinished.append(name)
        elif free.code:
            verdict = f"FAILED with {free.code}"
        else:
            verdict = "good" if lives and dies else "needs less" if lives else "needs more"
        good += verdict == "good"
        print(f"{name:32} {free.need / MIB:7.0f} MiB  {verdict}", flush=True)
    print(f"{good} of {len(typed.only)} within {MARGIN:.0%}")
    if unfinished:
        raise SystemExit(f"not measured, run again with --only: {', '.join(map(repr, unfinished))}")


if __name__ == "__main__":
    main()

"""From the start of the processes to the first step of every rank: time, imports, rendezvous and files.

Ranks on this machine, two per node, each a process of about 250 MB that imports torch, with data prepared by an earlier
run. Besides seconds, values that do not depend on the load of the machine are counted: files opened by a rank, sockets
of all ranks after the rendezvous, process groups created by a rank, and the queries of all ranks to rank 0's store.

python benchmarks/scale_starting.py [--ranks 8 32 64]
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from clusterctl.shared.record.files import write_text
from clusterctl.shared.record.layout import RunDir

CORA = Path(__file__).resolve().parents[1] / "data" / "cora"
PHASES = ("import", "meeting", "files", "first step")
PROGRAM = """
import json, os, stat, sys, time
opened, marks = 0, []
def count(event, arguments):
    global opened
    opened += event in ("open", "os.listdir", "os.scandir")
sys.addaudithook(count)
def mark():
    marks.append((time.time(), time.process_time(), opened))
def is_open(fd):
    try:
        return bool(os.fstat(fd))
    except OSError:  # the descriptor opened by listdir itself
        return False
marks.append((float(os.environ["LAUNCHED"]), 0.0, 0))
import torch
from clusterctl.engine.graph.storage import Graph, shared
from clusterctl.shared.node.events import Context
from clusterctl.shared.record.layout import current_attempt
from clusterctl.shared.spec import RedditTrain
from clusterctl.engine.task import rendezvous
from clusterctl.engine.task.task import joined
from clusterctl.engine.training.loop import fit
from clusterctl.engine.training.objectives.node import NodeClassification
from clusterctl.engine.data.reddit import recipe
mark()
asked = groups = 0
class Store(rendezvous.TCPStore):
    def get(self, key):
        global asked
        asked += 1
        return super().get(key)
    def multi_get(self, keys):
        global asked
        asked += len(keys)
        return super().multi_get(keys)
rendezvous.TCPStore = Store
new_group = torch.distributed.new_group
def counted(*words, **settings):
    global groups
    groups += 1
    return new_group(*words, **settings)
torch.distributed.new_group = counted
train = RedditTrain(epochs=1, batch_size=None, global_batch_size=1624, evaluate_every=0)  # one step
with joined(Context({"name": "starting", "workload": "reddit"}, attempt=current_attempt())) as task:
    mark()
    sockets = sum(stat.S_ISSOCK(os.fstat(int(fd)).st_mode) for fd in os.listdir("/proc/self/fd") if is_open(int(fd)))
    objective = NodeClassification(shared(task, Graph, *recipe(sys.argv[1])), train, task)
    mark()
    fit(objective, train, task)
    mark()
print(json.dumps({"marks": marks, "asked": asked, "groups": groups, "sockets": sockets}), flush=True)
os._exit(0)
"""


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8])
    counts = words.parse_args().ranks
    head = "".join(f"{phase:>26}" for phase in PHASES)
    print(f"{'ranks':>6}{'all, s':>8}{head}{'sockets':>9}{'groups':>8}{'roll':>8}")
    print(" " * 14 + f"{'s    CPU s   opened':>26}" * len(PHASES) + f"{'all':>9}{'a rank':>8}{'all':>8}")
    with tempfile.TemporaryDirectory(prefix="starting-") as name:
        started(Path(name), 1)  # prepares the data
        for ranks in counts:
            show(ranks, started(Path(name), ranks))


def started(folder: Path, ranks: int) -> list[dict[str, Any]]:
    """Start `ranks` ranks; the output of each."""
    attempt = RunDir(folder / f"on-{ranks}-{time.time_ns()}").attempt(0)
    attempt.path.mkdir(parents=True)
    write_text(attempt.secret, secrets.token_hex(32))  # as the batch script does
    own = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "TORCHELASTIC_"))}
    own |= {"CLUSTERCTL_RUN_DIR": str(attempt.path.parents[1]), "CLUSTERCTL_ATTEMPT": "0", "OMP_NUM_THREADS": "1"}
    own |= {"SLURM_NTASKS": str(ranks), "SLURM_STEP_NUM_NODES": str(-(-ranks // 2)), "LAUNCHED": repr(time.time())}
    places = [{"SLURM_PROCID": rank, "SLURM_LOCALID": rank % 2, "SLURM_NODEID": rank // 2} for rank in range(ranks)]
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(CORA)],
            env=own | {key: str(value) for key, value in place.items()},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for place in places
    ]
    done = [(process.communicate(), process.returncode) for process in processes]
    for (_, errors), code in done:
        if code:
            raise SystemExit(errors)
    return [json.loads(output.splitlines()[-1]) for (output, _), _ in done]


def show(ranks: int, found: list[dict[str, Any]]) -> None:
    """Print one line: for each phase, seconds of the slowest rank, total CPU time, and files opened by a rank."""
    marks = [rank["marks"] for rank in found]
    whole = max(own[-1][0] - own[0][0] for own in marks)
    line = f"{ranks:>6}{whole:>8.1f}"
    for phase in range(len(PHASES)):
        parts = [[after - before for before, after in zip(*own[phase : phase + 2], strict=True)] for own in marks]
        seconds, processor, opened = zip(*parts, strict=True)
        line += f"{max(seconds):>10.1f}{sum(processor):>8.1f}{sum(opened) / ranks:>8.0f}"
    line += f"{sum(rank['sockets'] for rank in found):>9}{max(rank['groups'] for rank in found):>8}"
    print(f"{line}{sum(rank['asked'] for rank in found):>8}", flush=True)


if __name__ == "__main__":
    main()

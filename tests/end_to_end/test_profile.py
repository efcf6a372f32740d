"""`submit --profile` from the command line: a trace of the training from every rank."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from support.scenario import Stage

from clusterctl.shared.record.files import read_lines
from clusterctl.shared.record.layout import RunDir

EMULATOR = pytest.mark.parametrize("back_end", ["emulator"], indirect=True)
CORA = Path(__file__).resolve().parents[2] / "data" / "cora"
JOB = f"""
workload = "reddit"
[resources]
nodes = 2
[train]
epochs = 2
batch_size = 64
[data]
root = {json.dumps(str(CORA))}
"""
STAGES = {"wait for batch", "gathering", "forward", "backward", "all-reduce", "optimizer", "sample"}


def sees_all_threads() -> bool:
    """Whether this torch traces the sampling thread; older versions trace only the main thread."""
    from torch._C._profiler import _ExperimentalConfig

    return "profile_all_threads" in (_ExperimentalConfig.__init__.__doc__ or "")


def losses(run: RunDir) -> list[float]:
    return [record["loss"] for record in read_lines(run.attempt(0).metrics) if "loss" in record]


@pytest.mark.long
@EMULATOR
def test_every_rank_writes_a_trace_and_the_losses_are_bit_identical(stage: Stage) -> None:
    job = stage.write_job("cora", JOB)
    done = stage.call("submit", job, "--cluster", stage.cluster, "--profile", "--follow")
    assert done.returncode == 0, done.stderr
    run = RunDir(stage.runs / done.stdout.strip())
    folder = run.attempt(0).profile
    assert f"traces of all ranks, for https://ui.perfetto.dev: {folder}" in done.stderr
    assert f"trace of steps 10 to 20, a file a rank: {folder}" in stage.log(run, 0)
    names = [f"rank_{rank:05}" for rank in range(2)]
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        f"{name}.{end}" for name in names for end in ("json.gz", "txt")
    )
    for name in names:
        with gzip.open(folder / f"{name}.json.gz") as file:
            events = json.load(file)["traceEvents"]
        regions = [event["name"] for event in events if event.get("cat") == "user_annotation"]
        steps = [int(region.partition("#")[2]) for region in regions if region.startswith("ProfilerStep#")]
        assert sorted(steps) == [*range(10, 21)]
        assert set(regions) >= STAGES - (set() if sees_all_threads() else {"sample"})
        assert all(regions.count(one) == 11 for one in STAGES - {"gathering", "sample", "forward"})
        assert "aten::embedding_bag" in {event["name"] for event in events}
        costliest = (folder / f"{name}.txt").read_text()  # which operators depends on the load of the machine
        assert "Self CPU" in costliest
        assert "aten::" in costliest
    plain = stage.submit(job, "--wait")
    assert not plain.attempt(0).profile.exists()
    assert losses(run) == losses(plain)
    assert len(losses(run)) == len(set(losses(run)))

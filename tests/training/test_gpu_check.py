"""`make gpu-check` without a GPU: what it reports, and its parts on the CPU at small size."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support.cpu_as_gpu import CpuAsGpu, install

from clusterctl.engine.data.reddit import reddit_like
from clusterctl.engine.graph import sampling
from clusterctl.engine.task.task import Task
from clusterctl.engine.training.objectives import node as node_objective
from clusterctl.shared.errors import ConfigError

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import gpu_check

    yield gpu_check
    for name in ("gpu_check", "gpu_correctness", "gpu_speed", "gpu_rows", "node_steps", "side_by_side"):
        sys.modules.pop(name, None)


def test_without_a_gpu_it_reports_what_to_check(
    parts: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigError, match="sees no GPU"):
        parts.chosen("cuda", 0)
    assert parts.chosen("cuda", 2) == torch.device("cuda", 0)
    monkeypatch.setattr(sys, "argv", ["gpu_check.py"])
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(SystemExit) as leaving:
        parts.main()
    assert leaving.value.code == ConfigError.exit_code
    assert re.match("error: torch sees no GPU on this machine\nhint: check `nvidia-smi`", capsys.readouterr().err)


def test_differing_losses_are_reported_as_wrong_and_exit_with_1(
    parts: Any, monkeypatch: pytest.MonkeyPatch, lone_task: Task, capsys: pytest.CaptureFixture[str]
) -> None:
    from gpu_correctness import losses
    from gpu_rows import compared

    rows = list(losses(CPU, 1))
    assert len(rows) == 7 + 7 + 3  # workloads, users' classes, where the data is
    assert all(row.is_right for row in rows)
    for extra, code in (([], 0), ([compared("a loss", 2e-5, 1e-5)], 1)):
        monkeypatch.setattr(parts, "check", lambda *_, extra=extra: [*rows, *extra])
        monkeypatch.setattr(sys, "argv", ["gpu_check.py", "--device", "cpu"])
        with pytest.raises(SystemExit) as leaving:
            parts.main()
        assert leaving.value.code == code
    shown = capsys.readouterr().out
    assert "| reddit: losses of 1 steps compared with the CPU's | 0.0e+00, at most 1e-05 | ok |" in shown
    assert "| a loss | 2.0e-05, at most 1e-05 | WRONG |" in shown


@pytest.mark.long
def test_every_other_part_runs_on_a_cpu(parts: Any, lone_task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    import gpu_correctness
    import gpu_speed

    monkeypatch.setattr(gpu_speed, "_COPIED", 1 << 20)
    monkeypatch.setattr(gpu_speed, "_RIVAL_STEPS", 3)
    graph = reddit_like(0.005)
    rows = [*gpu_correctness.devices(0), *gpu_speed.copies(CPU), *gpu_correctness.tf32(CPU)]
    rows += [*gpu_speed.epochs(graph, CPU), *gpu_speed.rivals(graph, CPU), *gpu_correctness.ranks(0, 2)]
    assert all(row.is_right is not False for row in rows)
    assert any("losses on 2 ranks, gloo" in row.what for row in rows)
    assert ("collectives of a step for 6 BatchNorms, 2 ranks", "1", True) in rows


@pytest.mark.long
def test_the_whole_table_has_run_on_a_cpu_that_passes_for_two_gpus(
    parts: Any, lone_task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So no line is run for the first time when a GPU is met."""
    import gpu_correctness
    import gpu_speed

    monkeypatch.setattr(gpu_speed, "_COPIED", 1 << 20)
    monkeypatch.setattr(gpu_speed, "_RIVAL_STEPS", 3)
    monkeypatch.setattr(gpu_speed, "_EPOCHS", 1)
    alike = {"losses": [1.0], "backend": "nccl", "collectives": 1}
    monkeypatch.setattr(gpu_correctness, "_on_ranks", lambda *_: alike)
    monkeypatch.setattr(node_objective, "worth_static", lambda _, *sizes: sampling.worth_static(GPU, *sizes))
    with pytest.MonkeyPatch.context() as patch, CpuAsGpu():  # undone before the fixture leaves its process group
        install(patch, gpus=2)
        rows = parts.check(GPU, 0.005, 5)
    assert not [row for row in rows if row.is_right is False]
    shown = parts.table(rows)
    for part in (
        *("threads on their rank's GPU, with a stream of their own | 2 of 2 | ok", "copies from pinned memory"),
        *("train.tf32 on", "reddit: the same as CUDA graphs", "edges on the host, features on disk"),
        *("taobao: steps that wait for the GPU | none | ok", "shop: steps that wait for the GPU | none | ok"),
        *("purchases: losses of 5 steps compared with the CPU's", "rgat: losses of 5 steps"),
        *("each batch prepared in its step", "1.1 GB at most"),
        *("float32, products in TF32, CUDA graphs", "a/kernel | 100% of", "ratio of ours to PyG's example"),
        *("losses on 2 ranks, nccl", "collectives of a step for 6 BatchNorms, 2 ranks | 1 | ok"),
    ):
        assert part in shown

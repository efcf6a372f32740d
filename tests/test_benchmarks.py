"""Every benchmark says how it is called, so its imports and options are those of today."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "benchmarks"
# Programs that a benchmark starts itself, with arguments of its own.
STARTED = {"command_cost.py", "gpu_correctness.py", "rank_worker.py", "taobao_rival.py"}
PROGRAMS = sorted(path for path in FOLDER.glob("*.py") if '__name__ == "__main__"' in path.read_text())


@pytest.mark.long
@pytest.mark.parametrize("path", [path for path in PROGRAMS if path.name not in STARTED], ids=lambda path: path.stem)
def test_a_benchmark_explains_itself(path: Path) -> None:
    done = subprocess.run(
        [sys.executable, path, "--help"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stderr
    described = ast.get_docstring(ast.parse(path.read_text())) or ""
    assert described.splitlines()[0] in done.stdout


def test_several_sizes_follow_one_option() -> None:
    """As in `--ranks 2 4 8`; names may have commas, numbers may not."""
    for path in PROGRAMS:
        assert not re.search(r"map\((?:int|float), options\.", path.read_text()), path


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
def test_an_experts_sparse_matrices_give_the_same_outputs_and_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    import torch
    from node_steps import as_matrices, expert_samples, pyg_model

    from clusterctl.engine.data.reddit import reddit_like
    from clusterctl.shared.spec import DeepSageTrain

    graph, settings = reddit_like(0.005), DeepSageTrain(batch_size=32)
    nodes, hops, _ = next(expert_samples(graph, settings))
    layers = pyg_model(graph, settings)
    found = []
    for edges_of in (hops, as_matrices(hops, nodes.numel())):
        x = graph.x[nodes]
        layers.zero_grad()
        for layer, (edges, rows) in zip(layers, edges_of, strict=True):
            x = layer((x, x[:rows]), edges).relu()
        x.sum().backward()
        found.append([x, *(parameter.grad for parameter in layers.parameters())])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)

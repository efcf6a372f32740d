"""Every benchmark says how it is called, so its imports and options are those of today."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "benchmarks"
PROGRAMS = sorted(path for path in FOLDER.glob("*.py") if '__name__ == "__main__"' in path.read_text())


@pytest.mark.long
@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
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


def test_the_growth_of_a_seed_is_a_line_with_its_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    """As scipy fits it; and of noisy lines, 95 % of the intervals have a further measurement in them."""
    pytest.importorskip("scipy")
    monkeypatch.syspath_prepend(str(FOLDER))
    import numpy as np
    from papers_seed import fitted, growth
    from scipy.stats import linregress

    random, places = np.random.default_rng(0), np.log([0.01, 0.02, 0.05, 0.12])
    inside, tries = 0, 500
    for _ in range(tries):
        values = 0.7 + 0.05 * places + 0.02 * random.standard_normal(4)
        line, known = fitted([*zip(places.tolist(), values.tolist(), strict=True)]), linregress(places, values)
        assert np.allclose([line.slope, line.at_zero, line.slope_error], [known.slope, known.intercept, known.stderr])
        inside += line.low < 0.7 + 0.02 * random.standard_normal() < line.high
    assert abs(inside / tries - 0.95) < 0.04
    assert "it takes three graphs" in growth([(0.0, 1.0), (1.0, 2.0)])
    assert "at the real size 1.00 core-ms a seed (95 %: 1.00 to 1.00)" in growth(
        [(-2.0, 0.5), (-1.0, 0.75), (0.0, 1.0)]
    )

"""PyG's own tests of its loaders and samplers, with those of `clusterctl.pyg` in place of PyG's.

    git clone --branch 2.8.0 https://github.com/pyg-team/pytorch_geometric
    python benchmarks/pyg_tests.py --tests pytorch_geometric/test [pytest's arguments]

Use the tests of the version of PyG that is installed. PyG skips them without pyg-lib or torch-sparse; here they run.
Without torch-sparse, tests that build a SparseTensor get a small replacement for it. The two that compare pyg-lib with
torch-sparse are left out. Cora is read from `data/`. Prints a table, and exits with 1 if a test fails.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections import Counter, defaultdict
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
import sparse_stand_in as sparse_stand_in  # before everything that imports SparseTensor
import torch_geometric
import torch_geometric.datasets
import torch_geometric.loader
import torch_geometric.sampler.neighbor_sampler
import torch_geometric.testing
from side_by_side import arguments
from torch_geometric import typing
from torch_geometric.testing import decorators

from clusterctl import pyg

FILES = (
    "loader/test_neighbor_loader.py",
    "loader/test_link_neighbor_loader.py",
    "loader/test_hgt_loader.py",
    "loader/test_shadow.py",
    "loader/test_neighbor_sampler.py",
    "loader/test_cluster.py",
    "sampler/test_sampler_base.py",
    "sampler/test_sampler_neighbor_sampler.py",
)
CORA = Path(__file__).parents[1] / "data" / "cora" / "raw"


class Results:
    """A pytest plugin that counts."""

    def __init__(self) -> None:
        self.counts: dict[str, Counter[str]] = defaultdict(Counter)
        self.failed: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        outcome = report.outcome
        if outcome == "failed":
            self.failed.append(report.nodeid)
        if report.when == "call" or outcome != "passed":
            self.counts[report.nodeid.partition("::")[0]][outcome] += 1


def replace_loaders() -> None:
    """Put our classes where PyG's tests import PyG's."""
    for name in (
        "NeighborLoader",
        "LinkNeighborLoader",
        "HGTLoader",
        "ShaDowKHopSampler",
        "NeighborSampler",
        "ClusterData",
    ):
        setattr(torch_geometric.loader, name, getattr(pyg, name))
    samplers: Any = torch_geometric.sampler.neighbor_sampler
    samplers.NeighborSampler, samplers.BidirectionalNeighborSampler = (
        pyg.PygNeighborSampler,
        pyg.PygBidirectionalSampler,
    )
    torch_geometric.sampler.NeighborSampler = pyg.PygNeighborSampler
    has_package = decorators.has_package
    decorators.has_package = lambda name: name.startswith(("torch_sparse", "pyg_lib")) or has_package(name)
    decorators.WITH_PYG_LIB = True
    torch_geometric.testing.withMETIS = lambda test: test
    os.environ["FULL_TEST"] = "1"
    typing.WITH_WEIGHTED_NEIGHBOR_SAMPLE = typing.WITH_EDGE_TIME_NEIGHBOR_SAMPLE = True


def replace_cora() -> None:
    """Read Cora from this repository, which has it in Reddit's format, instead of the network."""
    root = Path(mkdtemp())
    shutil.copytree(CORA, root / "raw")
    torch_geometric.datasets.Planetoid = lambda *_, **__: torch_geometric.datasets.Reddit(str(root))


def table() -> int:
    """Run the tests and print how many passed."""
    words = arguments(__doc__)
    words.add_argument("--tests", type=Path, required=True, help="the folder `test` of PyG's repository")
    options, of_pytest = words.parse_known_args()
    tests = options.tests.resolve()
    replace_loaders()
    replace_cora()
    results = Results()
    os.chdir(tests)
    usual = ["-q", "-p", "no:cacheprovider", "-k", "not pyg_lib_and_torch_sparse", "--rootdir", str(tests)]
    pytest.main([*usual, *FILES, *of_pytest], plugins=[results])
    columns = ("passed", "failed", "skipped")
    print(f"\nPyG {torch_geometric.__version__}\n| tests | {' | '.join(columns)} |\n|---|{'--:|' * len(columns)}")
    for file, counts in results.counts.items():
        print(f"| {file} | {' | '.join(str(counts[column]) for column in columns)} |")
    return 1 if results.failed else 0


if __name__ == "__main__":
    sys.exit(table())

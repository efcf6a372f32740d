"""The memory of a training by formula: the sizes it begins with, and how it grows."""

from __future__ import annotations

import io
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from support.made_graphs import cora, write_cora
from support.ranks import CORA, IMDB

from clusterctl.engine.data import graph_sets, igb, reddit
from clusterctl.engine.graph.attention import WORTH_COMPILING
from clusterctl.engine.workloads import synthetic
from clusterctl.launcher.checks.data_size import data_size, distinct
from clusterctl.launcher.checks.memory import _live, estimate, gpu_bytes, hops, smaller_batch
from clusterctl.shared.spec import Batches, GatOptions, Job, from_record

GIB, MIB = 1 << 30, 1 << 20
ARXIV, PAPERS = "ogbn-arxiv", "ogbn-papers100M"
BUILT_IN = {
    "taobao": {"generated": 0.01},
    "synthetic": {"avg_num_nodes": 50_000},
    "node-classification": {"model": "rgat", "generated": 1e-4},
}


def job(workload: str, root: Path | None = None, tasks: int = 1, nodes: int = 1, **train: Any) -> Job:
    resources = {"nodes": nodes, "tasks_per_node": tasks}
    record = {"workload": workload, "train": train, "resources": resources, "data": {"root": root and str(root)}}
    return from_record(Job, {"name": "t", **record})


def training(of: Job) -> int:
    found = estimate(of)
    assert found is not None
    return found.training


def test_sizes_are_those_of_the_prepared_data(tmp_path: Path) -> None:
    graph = reddit.read_raw(CORA, tmp_path / "scratch")
    found = data_size(job("reddit", CORA))
    assert found is not None
    assert (found.num_nodes, found.num_edges, found.features) == (graph.num_nodes, graph.indices.numel(), 1433)
    for seed in range(3):
        fake = synthetic.generate(3000, seed, 0.8)
        made = data_size(job("synthetic", avg_num_nodes=3000, seed=seed))
        assert made is not None
        assert (made.num_nodes, made.features, made.classes) == (fake.num_nodes, fake.num_features, fake.num_classes)
        assert made.num_edges == pytest.approx(fake.indices.numel(), rel=0.1)
    graphs = graph_sets.read_raw(graph_sets.raw_identity(str(IMDB)), tmp_path / "tu")
    several = data_size(job("graph-classification", IMDB))
    assert several is not None
    counted = several.graphs, several.num_nodes, several.num_edges
    assert counted == (graphs.num_graphs, graphs.num_nodes, graphs.indices.numel())


@pytest.mark.parametrize("name", [ARXIV, PAPERS])
def test_sizes_are_read_from_the_layouts_of_the_open_graph_benchmark(tmp_path: Path, name: str) -> None:
    graph = cora(tmp_path)
    graph = replace(graph, x=graph.x[:, :3])
    root = write_cora(name, tmp_path / "data", graph)
    found = data_size(job("reddit", root))
    assert found is not None
    assert (found.num_nodes, found.features) == (graph.num_nodes, 3)
    assert found.num_edges in (graph.indices.numel(), 2 * graph.indices.numel())


def test_sizes_of_several_types_are_those_that_are_generated(tmp_path: Path) -> None:
    igb.write(tmp_path / "igb", 1e-6, 0)
    graph = igb.read_raw(tmp_path / "igb", tmp_path)
    for of in (
        job("node-classification", model="rgat", generated=1e-6),
        job("node-classification", tmp_path / "igb", model="rgat"),
    ):
        found = data_size(of)
        assert found is not None
        assert found.nodes == graph.num_nodes
        assert found.edges.keys() == graph.indices.keys()
        there = sum(map(len, graph.indices.values()))  # repeated edges count once, and a small graph has many
        assert there <= found.num_edges < 1.5 * there


def test_a_model_or_a_program_of_the_users_own_and_missing_data_have_no_estimate(tmp_path: Path) -> None:
    own = [
        job("node-classification", CORA, model="mine:Net"),
        job("link-prediction", CORA, model="mine:Net"),
        job("command"),
        job("reddit"),
        job("taobao"),
        job("reddit", tmp_path),
        job("node-classification", CORA, model="GraphSAGE", options={"jk": "cat"}),
        job("node-classification", CORA, model="PNA", options={"towers": 2}),
        job("node-classification", CORA, model="GCN", batch="graph"),
        job("node-classification", CORA, model="GCN", sampler="mine:Sampler"),
    ]
    assert [*map(estimate, own)] == [None] * len(own)


def on_disk(of: Job, cache: str, **more: Any) -> Job:
    return replace(of, data=replace(of.data, cache=cache, **more))


def test_features_on_disk_need_their_cache_instead_of_a_table(tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    nodes, features = 10_000_000, 100  # 3.7 GiB of features
    for name, shape in {"data.npz/feature": (nodes, features), "graph.npz/row": (1000,)}.items():
        archive, _, array = name.partition("/")
        (tmp_path / "raw" / f"reddit_{archive}").write_bytes(header(f"{{'shape': {shape}}}", array))
    whole = job("reddit", tmp_path, precision="float64")
    needs = [training(on_disk(whole, f"{cache}M")) for cache in (0, 64, 1024, 1 << 20)]
    assert needs == sorted(needs)
    assert needs[1] - needs[0] == 64 * MIB
    assert needs[2] - needs[1] == 960 * MIB
    assert needs[3] - needs[0] == nodes * (features * 8 + 4), "no more than all rows and their index"
    assert needs[1] < training(whole)
    on_gpus = replace(whole, resources=replace(whole.resources, gpus_per_node=1))
    found, in_memory = estimate(on_disk(on_gpus, "64M")), estimate(on_gpus)
    assert found
    assert in_memory
    assert found.training - in_memory.training == 64 * MIB, "the cache is in the memory of the host"
    assert found.gpu < in_memory.gpu - nodes * features * 4


def test_attention_that_is_compiled_has_numba_in_every_rank() -> None:
    """The network computes large hops in compiled loops, even if its graph is too small for a compiled sampler."""
    edges = {1e-6: False, 5e-5: True}
    for scale, is_compiled in edges.items():
        of = job("node-classification", model="rgat", generated=scale)
        size = data_size(of)
        assert size is not None
        width = GatOptions().heads * GatOptions().hidden
        assert (max(size.edges.values()) * width >= WORTH_COMPILING) is is_compiled
        live = _live(of, size, Batches(of.train, 1))  # type: ignore[arg-type]
        assert live is not None
        assert (live.libraries > 0) is is_compiled


def header(text: str, array: str = "feature") -> bytes:
    found = io.BytesIO()
    with zipfile.ZipFile(found, "w") as archive:
        content = text.encode()
        archive.writestr(f"{array}.npy", b"\x93NUMPY\x01\x00" + len(content).to_bytes(2, "little") + content)
    return found.getvalue()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"PK\x03\x04",
        header(""),
        header("{'shape': (7)}"),
        header("{'shape': ()}"),
        header("{'shape': (__import__('os').getpid(), 2)}"),
        header("{'shape': (" + "9" * 5000 + ", 2)}"),
        header("{'shape': (" + "9" * 20 + ", 2)}"),
        header("{'shape': (3, 2)}")[:-30],
    ],
)
def test_damaged_and_hostile_files_have_no_size(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "reddit_data.npz").write_bytes(content)
    np.savez(tmp_path / "raw" / "reddit_graph.npz", row=np.arange(5))
    assert data_size(job("reddit", tmp_path)) is None


def test_a_sample_reaches_what_random_draws_reach() -> None:
    random = np.random.default_rng(0)
    weights = random.exponential(size=1000)
    for share in (np.full(1000, 1e-3), weights / weights.sum()):
        found = np.mean([len(np.unique(random.choice(1000, 700, p=share))) for _ in range(200)])
        assert distinct(700, 1000, alike=share[0] == 1e-3) == pytest.approx(found, rel=0.03)
    reached, edges = hops(10, (25, 10), 1000, 1_000_000)
    assert edges[0] == 250
    assert reached[0] < reached[1] < reached[2] <= 1000
    assert hops(10, (-1,), 1000, 4_000)[1] == [40]


@pytest.mark.parametrize("workload", BUILT_IN)
@given(
    batch=st.integers(1, 1 << 16),
    tasks=st.integers(1, 8),
    precision=st.sampled_from(["float32", "float64", "bfloat16"]),
)
def test_more_ranks_larger_batches_and_wider_numbers_never_need_less(
    workload: str, batch: int, tasks: int, precision: str
) -> None:
    train = BUILT_IN[workload] | {"batch_size": batch, "precision": precision}
    one = training(job(workload, tasks=tasks, **train))
    assert training(job(workload, tasks=tasks + 1, **train)) >= one
    spared = tasks * 256 * MIB if workload == "node-classification" else 0  # where attention begins to be compiled
    assert training(job(workload, tasks=tasks, **train | {"batch_size": batch * 2})) >= one - spared
    exchanged = 1.3 if workload == "taobao" else 1.01  # rows that ranks send each other
    assert training(job(workload, tasks=tasks, nodes=2, **train)) <= one * exchanged, "shared by more nodes"
    if precision == "float32":
        assert training(job(workload, tasks=tasks, **train | {"precision": "float64"})) > one


@pytest.mark.parametrize("workload", BUILT_IN)
@given(batch=st.integers(2, 1 << 17), share=st.floats(0.2, 1.0), total=st.booleans())
@example(batch=4096, share=0.7, total=True)
def test_the_proposed_batch_fits_and_twice_of_it_does_not(workload: str, batch: int, share: float, total: bool) -> None:
    key = "global_batch_size" if total else "batch_size"
    train = BUILT_IN[workload] | {key: batch} | ({"batch_size": None} if total else {})
    asked = job(workload, **train)
    fits = round(training(asked) * share)
    found = smaller_batch(asked, fits)
    assume(found)  # even one example may be too many
    size = int(found[f"train.{key}"])
    assert size < batch
    assert training(job(workload, **train | {key: size})) <= fits
    assert 2 * size >= batch or training(job(workload, **train | {key: 2 * size})) > fits


@pytest.mark.parametrize(
    ("kind", "size"),
    [("a100", 40), ("nvidia_a100-sxm4-80gb", 80), ("h100", 80), ("a100_3g.20gb", 20), ("", 0), ("gpu7", 0)],
)
def test_the_memory_of_a_gpu_is_known_by_its_name(kind: str, size: int) -> None:
    assert gpu_bytes(kind) == size * GIB

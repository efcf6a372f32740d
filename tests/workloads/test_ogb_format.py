"""Cora in each layout of the Open Graph Benchmark is that of Reddit's layout, and mistakes in the files are named."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest
import torch
from support.cora_layouts import CITES, WRITES, cora, write_cora

from clusterctl.graph.storage import Graph, compressed
from clusterctl.workloads import ogb_format
from clusterctl.workloads.ogb_format import read_raw, read_relations

NAMES = ["ogbn-arxiv", "ogbn-products", "ogbn-papers100M", "ogbn-mag"]


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Graph:
    return cora(tmp_path_factory.mktemp("scratch"))


@pytest.mark.parametrize("name", NAMES)
def test_cora_is_the_same_in_every_layout(tmp_path: Path, graph: Graph, name: str) -> None:
    root = write_cora(name, tmp_path / "data", graph)
    before = {path: path.stat() for path in root.rglob("*")}
    (tmp_path / "scratch").mkdir()
    assert ogb_format.is_here(root)
    found = read_raw(root, tmp_path / "scratch")
    for field in fields(Graph):
        own, wanted = getattr(found, field.name), getattr(graph, field.name)
        assert own == wanted if field.name == "num_classes" else torch.equal(own, wanted), field.name
        assert field.name == "num_classes" or own.dtype == wanted.dtype
    assert {path: path.stat() for path in root.rglob("*")}.keys() == before.keys()

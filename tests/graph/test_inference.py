from __future__ import annotations

import json
import weakref
from pathlib import Path

import pytest
import torch
from support.ranks import run_program
from torch import Tensor

from clusterctl.engine.graph.inference import own_rows
from clusterctl.shared.record.layout import RunDir

PROGRAM = """
import json, tempfile, torch
from pathlib import Path
from torch_geometric.nn import GCNConv, SAGEConv
from clusterctl.engine.graph import inference
from clusterctl.engine.graph.convolutions import GcnConv, SageConv
from clusterctl.engine.graph.convolutions import Network
from clusterctl.engine.graph.features.sources import FeaturesOnDisk
from clusterctl.engine.graph.storage import Graph, compressed, load, save
from clusterctl.shared.node.events import Context
from clusterctl.shared.record.layout import current_attempt
from clusterctl.engine.task.task import joined

inference.NODES_AT_ONCE = inference.NODES_AT_ONCE_FROM_DISK = 4  # gives slices several parts

def difference(task, layers, theirs, names, nodes, widths):
    generator = torch.Generator().manual_seed(nodes)
    pairs = torch.randint(0, nodes, (2, 6 * nodes), generator=generator)
    pairs = pairs[:, pairs[0] != pairs[1]].unique(dim=1)
    x = torch.randn(nodes, widths[0], generator=generator, dtype=torch.float64)
    empty = torch.arange(0)
    graph = Graph(*compressed(pairs, nodes), x, empty, empty, empty, empty, widths[-1])
    torch.manual_seed(1)
    network = Network(layers, widths, dropout=0.5).double().eval()
    expected = x
    for depth, layer in enumerate(network.layers):
        reference = theirs(*widths[depth : depth + 2]).double()
        reference.load_state_dict({new: layer.state_dict()[old] for new, old in names.items()})
        expected = reference(expected, pairs)
        expected = expected.relu() if depth < len(network.layers) - 1 else expected
    with tempfile.TemporaryDirectory() as folder:
        save(graph, Path(folder, "graph.pt"))
        x = load(Graph, Path(folder, "graph.pt")).x
        on_disk = FeaturesOnDisk(x, task, torch.float64, 0, lambda: torch.zeros(nodes))
    found = 0.0
    for features in (None, on_disk):
        own, outputs = inference.infer(network, graph, task, features=features)
        assert outputs.shape == (len(own), widths[-1]) and not outputs.requires_grad
        if len(own):
            found = max(found, float((outputs - expected[own.start : own.stop]).detach().abs().max()))
    return found

SAGE = {"lin_l.weight": "neighbor.weight", "lin_l.bias": "neighbor.bias", "lin_r.weight": "root.weight"}
GCN = {"lin.weight": "weight", "bias": "bias"}
with joined(Context({"name": "t", "workload": "reddit"}, attempt=current_attempt())) as task:
    print(json.dumps([
        difference(task, layers, theirs, names, nodes, widths)
        for layers, theirs, names in ((SageConv, SAGEConv, SAGE), (GcnConv, GCNConv, GCN))
        for nodes in (31, 4, 1)
        for widths in ([5, 8, 3], [9, 4, 4, 6])
    ]))
"""


@pytest.mark.parametrize("ranks_of_nodes", [[2, 1], pytest.param([3], marks=pytest.mark.long)])
def test_inference_over_uneven_slices_equals_pyg_on_the_whole_graph(ranks_of_nodes: list[int], tmp_path: Path) -> None:
    # Three ranks: with 4 nodes the last rank has none, with 1 node only the first has any.
    outputs = run_program(PROGRAM, RunDir(tmp_path).attempt(0), ranks_of_nodes)
    differences = [json.loads(output.splitlines()[-1]) for output in outputs]
    assert max(max(own) for own in differences) < 1e-12
    assert len(differences[0]) == 12


@pytest.mark.parametrize("shape", [(3,), ()], ids=["rows", "classes"])
def test_the_rows_of_a_layer_are_never_held_twice(shape: tuple[int, ...]) -> None:
    computed: list[weakref.ref[Tensor]] = []

    def part(number: int) -> Tensor:
        assert not [earlier for earlier in computed if earlier() is not None]
        rows = torch.full((4 if number < 4 else 1, *shape), number)
        computed.append(weakref.ref(rows))
        return rows

    rows = own_rows(map(part, range(5)), 17, None)
    assert rows.shape == (17, *shape)
    assert torch.equal(rows.view(17, -1)[:, 0], torch.arange(17) // 4)

"""The examples in docs/examples/pyg are the same training on 1, 2 and 4 ranks, or the log names what differs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.ranks import run_program

from clusterctl.shared.record.layout import RunDir

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples" / "pyg"
ON_ONE_RANK = {"appnp", "arxiv_gcn"}  # they train on the whole graph
# On ranks: training/test_rank_counts.py, test_typed_links.py
SEVERAL_TYPES = {"hgt", "purchases", "rgcn", "shop", "to_hetero_sage"}
NAMES = sorted({path.stem for path in EXAMPLES.glob("*.toml")} - ON_ONE_RANK - SEVERAL_TYPES)
VARIES = {  # and the words that name why
    "reddit_sage": "a forward draws random numbers",
    "graphs_gine": "a forward draws random numbers",
    "zinc_gine": "convs.0.nn.1, convs.1.nn.1 sees only the batch of its rank",
}
KEYED = "reddit_sage with dropout of clusterctl.pyg"
PROGRAM = f"""
import contextlib, importlib, io, json, sys, tomllib
import torch.nn.functional
sys.path.insert(0, {str(EXAMPLES)!r})
from dataclasses import replace
from pathlib import Path
import clusterctl.pyg
from clusterctl.engine.task.task import joined
from clusterctl.engine.workloads import graph_classification, link_prediction, node_classification
from clusterctl.shared.node.events import Context
from clusterctl.shared.record.layout import current_attempt

WORKLOADS = {{
    "graph-classification": graph_classification, "link-prediction": link_prediction,
    "node-classification": node_classification,
}}

class Functional:
    dropout = staticmethod(clusterctl.pyg.dropout)

    def __getattr__(self, name):
        return getattr(torch.nn.functional, name)

class Kept:
    def __init__(self):
        self.losses, self.scores = [], {{}}

    def write(self, loss=None, **others):
        if loss is not None:
            self.losses.append(loss)
        self.scores |= {{name: value for name, value in others.items() if name.startswith(("val_", "test_"))}}

    def __getattr__(self, name):
        return lambda *values, **named: None

found = {{}}
with joined(Context({{"name": "t", "workload": "reddit"}}, attempt=current_attempt())) as task:
    for case in {[*NAMES, KEYED]!r}:
        name = case.split()[0]
        record = tomllib.loads((Path({str(EXAMPLES)!r}) / f"{{name}}.toml").read_text())
        train = record["train"] | {{"precision": "float64", "epochs": 2, "global_batch_size": 48}}
        train.pop("batch_size", None)
        importlib.import_module(name).F = torch.nn.functional if case == name else Functional()
        context = Context({{**record, "name": name, "train": train}})
        workload, kept = WORKLOADS[context.job.workload], Kept()
        workload.joined = lambda _: contextlib.nullcontext(replace(task, metrics=kept))
        with contextlib.redirect_stdout(io.StringIO()) as log:
            workload.main(context)
        found[case] = [kept.losses, kept.scores, log.getvalue()]
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def on_ranks(tmp_path_factory: pytest.TempPathFactory) -> dict[int, dict[str, Any]]:
    """Number of ranks -> example -> its losses, scores and log on rank 0."""
    found = {}
    for tasks_per_node in ([1], [2], [1, 3]):
        ranks = sum(tasks_per_node)
        run = RunDir(tmp_path_factory.mktemp("runs") / f"on-{ranks}")
        outputs = run_program(PROGRAM, run.attempt(0), tasks_per_node, timeout=1500)
        found[ranks] = json.loads(outputs[0].splitlines()[-1])
    return found


@pytest.mark.long
@pytest.mark.parametrize("name", [*NAMES, KEYED])
def test_an_example_is_the_same_on_any_number_of_ranks_or_the_log_names_why_not(
    on_ranks: dict[int, dict[str, Any]], name: str
) -> None:
    losses, scores, log = on_ranks[1][name]
    assert len(losses) >= 4
    assert scores
    varies = "training depends on" in log
    assert varies == (name in VARIES)
    assert VARIES.get(name, "") in log
    for ranks in (2, 4):
        theirs, their_scores, _ = on_ranks[ranks][name]
        same = theirs == pytest.approx(losses, rel=0, abs=1e-9)
        assert same != varies, (ranks, losses, theirs)
        if not varies:
            assert their_scores == pytest.approx(scores, rel=0, abs=1e-9)

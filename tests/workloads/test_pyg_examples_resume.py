"""The examples in docs/examples/pyg end with the same weights and scores if they are interrupted: all in the folder."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from clusterctl.engine.task.task import Task
from clusterctl.engine.training.loop import fit
from clusterctl.engine.workloads import graph_classification, link_prediction, node_classification
from clusterctl.shared.node.events import Context, Events
from clusterctl.shared.node.signals import StopRequest
from clusterctl.shared.record.layout import RunDir
from clusterctl.shared.record.metrics import MetricsWriter, Role, metric_of
from clusterctl.shared.spec import Checkpoint

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples" / "pyg"
RECORDS = {path.stem: tomllib.loads(path.read_text()) for path in sorted(EXAMPLES.glob("*.toml"))}
WORKLOADS: dict[str, Any] = {
    "graph-classification": graph_classification,
    "link-prediction": link_prediction,
    "node-classification": node_classification,
}
ALWAYS = ("link_mlp",)


class Trained(NamedTuple):
    """What a training leaves, and where its attempts began and ended."""

    losses: dict[int, float]  # by step
    scores: dict[tuple[int, str], float]  # by epoch and name
    weights: dict[str, Tensor]
    steps: list[list[int]]  # of each attempt


class Watched(MetricsWriter):
    """Keeps losses and scores, and requests a stop after step `at`, as a signal would."""

    def __init__(self, attempt: Any, stop: StopRequest, at: int | None, found: Trained) -> None:
        super().__init__(attempt, 0)
        self._stop, self._at, self._found, self._epoch = stop, at, found, 0

    def write(self, **values: Any) -> None:
        super().write(**values)
        self._epoch = values.get("epoch", self._epoch)
        if "loss" in values:
            self._found.losses[values["step"]] = values["loss"]
            self._found.steps[-1].append(values["step"])
            self._stop.warned = self._stop.warned or values["step"] == self._at
        for name, value in values.items():
            if name.startswith(("val_", "test_")):
                self._found.scores[self._epoch, name] = value


def trained(name: str, task: Task, run: RunDir, stops: list[int]) -> Trained:
    """Train an example that is interrupted after these steps, each time in a new attempt."""
    record = RECORDS[name]
    train = {**record["train"], "epochs": 12}  # of one step each
    if train.get("batch") != "graph":
        train |= {"epochs": 3, "global_batch_size": 48}
        train.pop("batch_size", None)
    context = Context({**record, "name": name, "train": train})
    workload, found = WORKLOADS[record["workload"]], Trained({}, {}, {}, [])

    def kept(objective: Any, *arguments: Any) -> Any:
        score = fit(objective, *arguments)
        found.weights.update(objective.model.state_dict())
        return score

    for number, at in enumerate([*stops, None]):
        attempt, stop = run.attempt(number), StopRequest()
        attempt.path.mkdir(parents=True)
        found.steps.append([])
        own = replace(
            task,
            attempt=attempt,
            stop=stop,
            checkpoint=Checkpoint(),
            restarts=True,
            metrics=Watched(attempt, stop, at, found),
            events=Events(attempt, 0),
        )

        @contextmanager
        def alone(_: Context, own: Task = own) -> Iterator[Task]:
            yield own

        torch.manual_seed(1000 + number)  # a new process would not have the old one's state either
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(workload, "joined", alone)
            patch.setattr(workload, "fit", kept)
            if at is None:
                workload.main(context)
                return found
            with pytest.raises(SystemExit, match="75"):
                workload.main(context)
    raise AssertionError("the last attempt is not interrupted")


@pytest.mark.parametrize(
    "name", [name if name in ALWAYS else pytest.param(name, marks=pytest.mark.long) for name in RECORDS]
)
def test_an_example_that_is_interrupted_is_bit_identical_to_an_undisturbed_one(
    name: str, lone_task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice, in the middle of an epoch where it has several steps."""
    monkeypatch.syspath_prepend(EXAMPLES)
    undisturbed = trained(name, lone_task, RunDir(tmp_path / "undisturbed"), [])
    steps = [*undisturbed.losses]
    again = trained(name, lone_task, RunDir(tmp_path / "interrupted"), [len(steps) * 2 // 5, len(steps) * 3 // 4])
    assert len(again.steps) == 3
    assert all(again.steps)
    assert [step for of_attempt in again.steps for step in of_attempt] == steps  # none twice
    assert again.losses == undisturbed.losses
    assert again.scores == undisturbed.scores
    assert any(metric_of(score).role is Role.RESULT for _, score in again.scores)
    assert again.weights.keys() == undisturbed.weights.keys()
    assert again.weights
    for part, values in again.weights.items():
        assert torch.equal(values, undisturbed.weights[part]), part

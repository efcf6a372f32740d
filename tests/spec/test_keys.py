"""Every key has a description, and a default as the user would type it."""

from __future__ import annotations

import dataclasses
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.shared.spec import WORKLOADS, Cluster, Job, cluster, from_record, job, train
from clusterctl.shared.spec.cluster import UserConfiguration
from clusterctl.shared.spec.keys import as_toml, described, keys_of, leaves_as_written
from clusterctl.shared.spec.values import Duration

SPECS = [
    cls
    for module in (job, cluster, train)
    for cls in vars(module).values()
    if dataclasses.is_dataclass(cls) and isinstance(cls, type) and cls.__module__ == module.__name__
]


def test_the_tests_below_cover_all_tables() -> None:
    assert {Job, Cluster, UserConfiguration, *(workload.train for workload in WORKLOADS.values())} <= set(SPECS)


@pytest.mark.parametrize("cls", SPECS, ids=lambda cls: cls.__name__)
def test_every_field_has_one_sentence_of_description(cls: type) -> None:
    for field in dataclasses.fields(cls):
        text = described(cls, field.name)
        assert re.fullmatch(r"""["A-Z].{10,149}\.""", text), f"{cls.__name__}.{field.name}: {text!r}"
        assert ". " not in text, f"{cls.__name__}.{field.name}: {text!r}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Bare(train.LoopTrain):
    epochs: int = 5
    pages: int = 7
    copies: int = 1
    """How often."""


def test_a_field_without_description_inherits_one() -> None:
    texts = [described(_Bare, name) for name in ("epochs", "pages", "copies")]
    assert texts == ["Passes over the training data.", "", "How often."]


@pytest.mark.parametrize(
    ("path", "kind", "default"),
    [
        ("resources.time", "duration (minutes) | auto", '"1h"'),
        ("checkpoint.every", "duration (minutes)", '"10m"'),
        ("watchdog.floor", "duration (seconds)", '"30s"'),
        ("watchdog.loading", "duration (seconds)", '"6h"'),
        ("resources.warning", "duration (seconds)", ""),
        ("container.code", "mounted | image", '"mounted"'),
        ("resources.nodes", "integer", "1"),
        ("container.mounts", "list", ""),
    ],
)
def test_defaults_are_printed_as_typed(path: str, kind: str, default: str) -> None:
    key = next(key for key in keys_of(Job) if key.path == path)
    assert (key.kind, as_toml(key.default)) == (kind, default)


@pytest.mark.parametrize("cls", [Job, Cluster])
def test_writing_out_all_defaults_changes_nothing(cls: type) -> None:
    required = {"name": "x", "workload": "command"} if cls is Job else {"name": "x"}
    written: dict[str, object] = dict(required)
    for key in keys_of(cls):
        if key.default is not None:
            *tables, name = key.path.split(".")
            table: dict[str, object] = written
            for part in tables:
                table = table.setdefault(part, {})  # type: ignore[assignment]
            table[name] = key.default
    assert from_record(cls, written, parse=True) == from_record(cls, required, parse=True)


@given(st.integers(0, 2**31), st.sampled_from([1, 60]))
def test_written_durations_parse_back(seconds: int, unit: int) -> None:
    assert Duration(unit).parse(Duration(unit).write(seconds)) == seconds


def test_values_of_any_record_are_written_with_units() -> None:
    record = {"name": "x", "resources": {"time": 5400, "nodes": 2, "warning": None}, "env": {}, "watchdog": 3}
    assert dict(leaves_as_written(record)) == {
        ("name",): "x",
        ("resources", "time"): "90m",
        ("resources", "nodes"): 2,
        ("resources", "warning"): None,
        ("env",): {},
        ("watchdog",): 3,
    }

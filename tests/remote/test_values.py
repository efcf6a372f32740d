"""Sending values of the API: the same types arrive, and nothing else is looked up or executed."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.api.run import MetricRecords
from clusterctl.errors import ConfigError, HostError, UsageError
from clusterctl.remote.values import decoded, encoded
from clusterctl.runs.layout import RunDir
from clusterctl.runs.stages import Stage
from clusterctl.spec import Job, Resources
from clusterctl.spec.values import GpuCount


def travelled(value: object) -> object:
    return decoded(json.loads(json.dumps(encoded(value))))


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(st.text() | st.integers(), inner)
        | st.frozensets(st.integers())
    ),
    max_leaves=20,
)


@given(PLAIN)
def test_plain_values_arrive_unchanged(value: object) -> None:
    arrived = travelled(value)
    assert arrived == value
    assert type(arrived) is type(value)


def test_our_own_types_arrive_unchanged() -> None:
    job = Job(name="a", workload="command", argv=("b",), resources=Resources(gpus_per_node=GpuCount("a100:4")))
    for value in (job, Stage.FINISHED, RunDir(Path("/runs/a")), Path("/a"), MetricRecords([{"step": 1}])):
        arrived = travelled(value)
        assert arrived == value
        assert type(arrived) is type(value)
    assert str(travelled(job).resources.gpus_per_node) == "a100:4"  # type: ignore[attr-defined]
    assert math.isnan(travelled(math.nan))  # type: ignore[arg-type]


def test_an_error_arrives_with_its_message_and_hint() -> None:
    error = travelled(ConfigError("what", "type this"))
    assert isinstance(error, ConfigError)
    assert (error.message, error.hint, str(error)) == ("what", "type this", "what")


def test_each_of_our_values_is_offered_for_adoption() -> None:
    seen: list[object] = []
    decoded(encoded([RunDir(Path("/a")), 1]), lambda value: seen.append(value) or value)
    assert seen == [RunDir(Path("/a"))]


@pytest.mark.parametrize(
    "hostile",
    [
        {"of": "subprocess:Popen", "fields": {"dict": [["args", "true"]]}},
        {"of": "clusterctl.remote.values:Path", "fields": {"dict": []}},
        {"of": "clusterctl.launch.sbatch:call_sbatch", "fields": {"dict": []}},
        {"of": "clusterctl.remote.values:importlib.os.system", "items": ["true"]},
        {"error": "builtins:SystemExit", "text": "", "fields": {"dict": []}},
        {"enum": "clusterctl.runs.stages:Stage", "name": "__class__"},
        {"of": "clusterctl.runs.layout:RunDir", "fields": {"dict": [["other", 1]]}},
        {"unknown": 1},
        {"path": 1, "float": 2},
        {"of": "clusterctl.nothing:A", "fields": {}},
    ],
)
def test_anything_but_our_own_values_is_refused(hostile: object) -> None:
    with pytest.raises(HostError, match="invalid"):
        decoded(hostile)


def test_values_without_an_encoding_are_not_sent() -> None:
    with pytest.raises(TypeError, match="stays on its machine"):
        encoded(UsageError)
    with pytest.raises(TypeError, match="stays on its machine"):
        encoded(object())

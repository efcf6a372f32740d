"""Sending values of the API: the same types arrive, and nothing else is looked up, imported or executed."""

from __future__ import annotations

import dataclasses
import importlib
import json
import math
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.made_runs import busy_files

import clusterctl.launcher.api
from clusterctl.launcher.api.remote import operations as calls
from clusterctl.launcher.api.remote.operations import expected
from clusterctl.launcher.api.run import MetricRecords
from clusterctl.launcher.observe.measurements import metric_rows
from clusterctl.launcher.observe.status import statuses_of
from clusterctl.launcher.remote import values
from clusterctl.launcher.remote.values import decoded, encoded, parsed
from clusterctl.shared.errors import ClusterctlError, ConfigError, HostError, UsageError
from clusterctl.shared.record.layout import RunDir
from clusterctl.shared.record.states import State
from clusterctl.shared.spec import Job, Resources
from clusterctl.shared.spec.values import GpuCount


def travelled(value: Any, hint: Any = None) -> Any:
    return decoded(json.loads(json.dumps(encoded(value))), hint or type(value))


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(st.text() | st.integers(0, 9), inner)
        | st.frozensets(st.integers(0, 9))
    ),
    max_leaves=20,
)


@given(PLAIN)
def test_plain_values_arrive_unchanged(value: object) -> None:
    arrived = travelled(value, Any)
    assert arrived == value
    assert type(arrived) is type(value)


def test_our_own_types_arrive_unchanged() -> None:
    job = Job(name="a", workload="command", argv=("b",), resources=Resources(gpus_per_node=GpuCount("a100:4")))
    for value in (job, State.FINISHED, RunDir(Path("/runs/a")), Path("/a"), MetricRecords([{"step": 1}])):
        arrived = travelled(value, Path if isinstance(value, Path) else type(value))
        assert arrived == value
        assert type(arrived) is type(value)
    assert str(travelled(job).resources.gpus_per_node) == "a100:4"
    assert math.isnan(travelled(math.nan))


def test_an_error_arrives_with_its_message_and_hint() -> None:
    error = travelled(ConfigError("what", "type this"), ClusterctlError)
    assert isinstance(error, ConfigError)
    assert (error.message, error.hint, str(error)) == ("what", "type this", "what")


def test_each_of_our_values_is_offered_for_adoption() -> None:
    seen: list[object] = []
    decoded(encoded([RunDir(Path("/a")), 1]), list[RunDir | int], adopt=lambda value: seen.append(value) or value)
    assert seen == [RunDir(Path("/a"))]


def deep(levels: int) -> object:
    value: object = 1
    for _ in range(levels):
        value = {"list": [value]}
    return value


@pytest.mark.parametrize(
    "hostile",
    [
        {"of": "subprocess:Popen", "fields": {"dict": [["args", "true"]]}},
        {"of": "clusterctl.launcher.remote.values:Path", "fields": {"dict": []}},
        {"of": "clusterctl.launcher.submission.sbatch:call_sbatch", "fields": {"dict": []}},
        {"of": "clusterctl.launcher.remote.values:importlib.os.system", "items": ["true"]},
        {"error": "builtins:SystemExit", "text": "", "fields": {"dict": []}},
        {"enum": "clusterctl.shared.record.states:State", "name": "__class__"},
        {"of": "clusterctl.shared.record.layout:RunDir", "fields": {"dict": [["other", 1]]}},
        {"unknown": 1},
        {"path": 1, "float": 2},
        {"of": "clusterctl.nothing:A", "fields": {}},
        {"of": "clusterctl.launcher.remote.ssh:subprocess.os.stat_result", "items": [1] * 10},
        {"of": "clusterctl.launcher.remote.install:x", "fields": {"dict": []}},
        {"of": ["clusterctl.shared.record.layout:RunDir"], "fields": {"dict": [["path", {"path": "/a"}]]}},
        {"of": "clusterctl.shared.record.layout:RunDir", "fields": {"dict": [["path", "/a"]]}},
        {"of": "clusterctl.shared.record.layout:RunDir", "fields": {"dict": []}},
        {"of": "clusterctl.shared.record.layout:RunDir", "items": [{"path": "/a"}]},
        {"error": "clusterctl.shared.errors:UsageError", "text": "a", "fields": {"dict": [["message", "a"]]}},
        {
            "error": "clusterctl.shared.errors:UsageError",
            "text": "a",
            "fields": {"dict": [["message", 1], ["hint", ""]]},
        },
        {"error": "clusterctl.shared.errors:UsageError", "text": "a", "fields": {"dict": [["exit_code", 0]]}},
        {"dict": [[{"list": []}, 1]]},
        {"dict": [1]},
        {"float": 10**400},
        {"float": "1" * 10**6},
        {"gpus": "x" * 10**6},
        {"bytes": "no base64!"},
        {"list": "letters"},
        {},
        [1],
        10**4000,
        deep(400),
    ],
)
def test_anything_but_our_own_values_is_refused(hostile: object) -> None:
    for hint in (Any, RunDir, State, ClusterctlError, MetricRecords, list[RunDir], dict[str, int], float, bytes):
        with pytest.raises(HostError, match="invalid"):
            decoded(hostile, hint)


def test_values_without_an_encoding_are_not_sent() -> None:
    with pytest.raises(TypeError, match="stays on its machine"):
        encoded(UsageError)
    with pytest.raises(TypeError, match="stays on its machine"):
        encoded(object())


def test_deep_json_is_an_error() -> None:
    for text in ("[" * 10**6, '{"a":' * 10**5, b"\xff", "{", "1" * 10**5):
        with pytest.raises(HostError, match="invalid"):
            parsed(text)


def operations() -> dict[str, object]:
    """Every operation that can be called on another machine -> the type of its result."""
    for module in pkgutil.walk_packages(clusterctl.launcher.api.__path__, "clusterctl.launcher.api."):
        importlib.import_module(module.name)
    return {name: expected(name) for name in sorted(calls._KNOWN)}


def test_every_type_that_an_operation_takes_or_returns_can_be_sent() -> None:
    seen: set[object] = set()
    waiting = [*operations().values()]
    while waiting:
        hint = waiting.pop()
        inner = get_args(hint)
        if get_origin(hint) is Annotated:
            inner = inner[:1]
        waiting += [one for one in inner if one is not ...]
        if inner or hint in seen:
            continue
        seen.add(hint)
        if isinstance(hint, type) and hint.__module__.startswith("clusterctl.") and hint is not GpuCount:
            is_value = dataclasses.is_dataclass(hint) or hasattr(hint, "_fields")
            assert is_value or issubclass(hint, Enum | list | ClusterctlError), hint
            if not issubclass(hint, Enum | list):
                waiting += values._fields(hint).values()
        else:
            assert hint in (*values._SIMPLE, *values._HOLDERS, dict, Mapping, Any, object), hint


def test_an_answer_of_another_type_is_refused_for_every_operation() -> None:
    wrong: list[object] = [
        5,
        "text",
        {"list": [5]},
        {"list": [{"list": []}]},
        {"enum": "clusterctl.shared.record.states:State", "name": "FINISHED"},
        encoded(Resources()),
        encoded(UsageError("a")),
        {"of": "clusterctl.launcher.api.run:Run", "fields": {"dict": [["path", 5]]}},
        {"of": "clusterctl.launcher.api.run:Run", "fields": {"dict": [["path", {"path": "/a"}], ["place", 5]]}},
        {"of": "clusterctl.launcher.api.run:MetricRecords", "items": [5]},
    ]
    # Their callers parse the text, and refuse any other JSON.
    as_json = [(name, "text") for name in ("agents.reading:_fit", "agents.reading:read_there")]
    for name, hint in operations().items():
        refused = 0
        for value in wrong:
            try:
                found = decoded(value, hint)
            except HostError:
                refused += 1
            else:
                harmless = [("find:names", []), ("run:Run.job_id", "text"), ("nodes:allocate", "text"), *as_json]
                harmless += [("run:Run._result", "text"), ("run:Run.rank_of", 5)]  # JSON that the caller reads; a rank
                assert (name, found) in harmless, name
        assert refused >= len(wrong) - 1


def test_the_status_of_a_run_arrives_unchanged(fabricate: Callable[..., RunDir]) -> None:
    run = fabricate(files=busy_files())
    found = replace(statuses_of([run]), snapshots={}, problems=())
    assert decoded(json.loads(json.dumps(encoded(found))), expected("find:look")) == found
    assert decoded(json.loads(json.dumps(encoded(found.statuses[0]))), expected("run:Run.status")) == found.statuses[0]
    records = MetricRecords(metric_rows(run))
    assert decoded(json.loads(json.dumps(encoded(records))), expected("run:Run.metrics")) == records


def test_the_arguments_of_every_operation_have_types_that_can_be_read() -> None:
    operations()
    for name, function in calls._KNOWN.items():
        for key, hint in calls._annotations(function).items():
            assert values.resolved(hint, function.__module__), (name, key)

"""Converting records to dataclasses and back."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clusterctl.shared.spec import Cluster, Job, RedditTrain, SyntheticTrain, from_record, to_record
from clusterctl.shared.spec.records import InvalidRecord


def problems(record: dict[str, Any]) -> set[str]:
    with pytest.raises(InvalidRecord) as caught:
        from_record(Job, record, parse=True)
    return {str(problem) for problem in caught.value.problems}


def test_every_problem_is_reported_at_once() -> None:
    record = {
        "name": "two words",
        "workload": "reddit",
        "train": {"lr": -1, "batchsize": 3, "epochs": True, "fan_out": [3, -4]},
        "resources": {"time": "4hx", "nodes": 1.5, "memory": "64 gallons"},
        "env": {"a b": "x"},
    }
    assert problems(record) == {
        "name: must be 1 to 64 letters, digits, '.', '_' and '-', first a letter or digit",
        "train.lr: must be a finite number above 0",
        "train.batchsize: unknown key (did you mean batch_size?)",
        "train.epochs: expected a whole number, not true",
        "train.fan_out: must be at least -1",
        'resources.time: not a duration: write 90, "90s", "20m", "4h", "2d" or "1-00:00:00"',
        "resources.nodes: expected a whole number, not 1.5",
        'resources.memory: must be a size such as "64G"',
        "env.a b: must be a shell variable's name (letters, digits and '_')",
    }


def test_the_workload_determines_the_class_of_train() -> None:
    assert isinstance(from_record(Job, {"name": "x", "workload": "reddit"}).train, RedditTrain)
    assert isinstance(from_record(Job, {"name": "x", "workload": "synthetic"}).train, SyntheticTrain)


def test_an_unknown_workload_is_the_only_problem_reported() -> None:
    found = problems({"name": "x", "workload": "redit", "train": {"anything": 1}})
    known = "synthetic, reddit, deep-sage, node-classification, link-prediction, taobao, graph-classification, command"
    assert found == {f"workload: must be one of {known} (did you mean reddit?)"}


def test_a_list_of_the_wrong_length_is_reported() -> None:
    record = {"name": "x", "workload": "taobao", "train": {"fan_out": [8, 4, 2]}}
    assert problems(record) == {"train.fan_out: must have 2 elements"}


def test_unpaired_surrogates_are_rejected_but_undecodable_bytes_are_not() -> None:
    """A damaged run.json can contain such surrogates; Python decodes bytes that are not UTF-8 to other ones."""
    record = {"name": "x", "workload": "command", "argv": ["\udcff", "\ud800"], "env": {"A": "\udfff"}}
    message = "expected text without unpaired surrogates"
    assert problems(record) == {f"argv: {message}", f"env.A: {message}"}


def test_missing_keys_are_reported() -> None:
    assert problems({}) == {"name: missing", "workload: missing"}


def test_an_int_is_accepted_as_a_float_but_not_vice_versa() -> None:
    assert from_record(Job, {"name": "x", "workload": "reddit", "train": {"lr": 1}}).train == RedditTrain(lr=1.0)
    assert problems({"name": "x", "workload": "reddit", "train": {"epochs": 1.0}})


def test_records_round_trip() -> None:
    job = from_record(Job, {"name": "x", "workload": "reddit", "argv": ["a"], "env": {"A": "b"}})
    assert from_record(Job, to_record(job)) == job
    typed = to_record(job) | {"resources": {"gpus_per_node": "a100:4"}}
    assert to_record(from_record(Job, typed))["resources"]["gpus_per_node"] == "a100:4"
    cluster = Cluster(name="c", setup=("module load cuda",))
    assert from_record(Cluster, to_record(cluster)) == cluster


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
KEYS = st.sampled_from(["name", "workload", "argv", "resources", "container", "env", "data", "train", "code", "x"])


@settings(suppress_health_check=[HealthCheck.too_slow])  # on a busy machine
@given(st.dictionaries(KEYS, JSON | st.sampled_from(["reddit", "4h"])))
def test_any_record_is_parsed_or_rejected_with_its_problems(record: dict[str, Any]) -> None:
    try:
        assert isinstance(from_record(Job, record, parse=True), Job)
    except InvalidRecord as error:
        assert error.problems

from __future__ import annotations

import pytest

from clusterctl.shared.errors import ConfigError
from clusterctl.shared.spec import Batches, Job, NodeTrain, RedditTrain, TrainingSet, from_record, to_record

CORA = TrainingSet(1624, "nodes")


@pytest.mark.parametrize(
    ("train", "ranks", "line"),
    [
        ({"batch_size": 128}, 4, "global batch 512 (4 ranks x 128); 4 steps per epoch of 1,624 nodes"),
        ({"batch_size": 2000}, 1, "global batch 2,000; 1 step per epoch of 1,624 nodes"),
        ({"global_batch_size": 512}, 16, "global batch 512 (16 ranks x 32); 4 steps per epoch of 1,624 nodes"),
        ({"global_batch_size": 500}, 16, "global batch 500 (16 ranks x 31 or 32); 4 steps per epoch of 1,624 nodes"),
    ],
)
def test_one_line_shows_the_global_batch_and_the_steps(train: dict[str, int], ranks: int, line: str) -> None:
    assert str(Batches(NodeTrain(**train), ranks, CORA)) == line  # type: ignore[arg-type]


def test_estimated_and_unknown_training_sets_are_marked_as_such() -> None:
    estimate = TrainingSet(60_000, "nodes", exact=False)
    line = "global batch 512 (4 ranks x 128); about 118 steps per epoch of about 60,000 nodes"
    assert str(Batches(NodeTrain(), 4, estimate)) == line
    assert str(Batches(NodeTrain(), 4)).startswith("global batch 512 (4 ranks x 128); the log shows the steps")


def test_only_a_batch_larger_than_the_training_set_is_a_warning() -> None:
    large = Batches(NodeTrain(batch_size=128), 16, CORA)
    exceeds = "the global batch of 2,048 (16 ranks x 128) exceeds the training set of 1,624 nodes"
    assert large.too_large == f"{exceeds}: each epoch is a single step"
    assert "train.global_batch_size instead" in large.remedy
    idle = Batches(NodeTrain(batch_size=128), 2000, CORA)
    assert idle.too_large.endswith("each epoch is a single step, and 376 ranks train only on padding")
    assert not Batches(NodeTrain(batch_size=128), 12, CORA).too_large
    assert not Batches(NodeTrain(batch_size=2000), 1, CORA).too_large, "one full batch on a single rank is deliberate"
    assert not Batches(NodeTrain(batch_size=2000), 16).too_large


def job(**train: int) -> Job:
    return from_record(Job, {"name": "t", "workload": "reddit", "train": train}, parse=True)


def test_the_global_batch_size_replaces_the_batch_size_and_its_default() -> None:
    assert job().train == RedditTrain(batch_size=1024, global_batch_size=None)
    assert job(global_batch_size=512).train == RedditTrain(batch_size=None, global_batch_size=512)
    for one in (job(), job(batch_size=7), job(global_batch_size=512)):
        assert from_record(Job, to_record(one)) == one


def test_exactly_one_batch_size_must_be_set() -> None:
    with pytest.raises(ConfigError, match=r"train\.global_batch_size: cannot be set together with batch_size"):
        job(batch_size=128, global_batch_size=512)
    record = to_record(job())
    record["train"]["batch_size"] = None
    with pytest.raises(ConfigError, match=r"train\.batch_size: missing"):
        from_record(Job, record)

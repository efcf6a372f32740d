"""Each message is sent at most once, by any number of processes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from clusterctl.launcher.notifications.notifier import MOST_TRIES, Delivery, Outcome, next_try, note, take


def one_try(folder: Path, *answers: Delivery) -> bool:
    """Make one try if allowed, and record its outcome; whether a try was allowed."""
    path = next_try(folder, "failed-0.webhook")
    if path is None or not take(path):
        return False
    for answer in answers:
        note(path, answer)
    return True


@pytest.mark.parametrize("answers", [[Delivery(Outcome.SENT)], [Delivery(Outcome.UNKNOWN, "hung")], []])
def test_a_message_that_may_have_arrived_is_not_sent_again(tmp_path: Path, answers: list[Delivery]) -> None:
    assert one_try(tmp_path / "notified", *answers)
    assert not one_try(tmp_path / "notified")


def test_a_refused_message_is_retried_a_limited_number_of_times(tmp_path: Path) -> None:
    refused = Delivery(Outcome.REFUSED, "HTTP status 500")
    assert [one_try(tmp_path, refused) for _ in range(MOST_TRIES + 1)] == [True] * MOST_TRIES + [False]
    assert {path.read_text() for path in tmp_path.iterdir()} == {"refused: HTTP status 500\n"}


def test_only_one_of_many_processes_sends(tmp_path: Path) -> None:
    for answer in (Delivery(Outcome.REFUSED), Delivery(Outcome.SENT)):
        path = next_try(tmp_path, "stalled-1.command")
        assert path is not None
        with ThreadPoolExecutor(16) as pool:
            assert sum(pool.map(take, [path] * 64)) == 1
        note(path, answer)
    assert next_try(tmp_path, "stalled-1.command") is None


def test_different_messages_are_tracked_separately(tmp_path: Path) -> None:
    assert one_try(tmp_path)
    assert next_try(tmp_path, "failed-1.webhook") is not None
    assert next_try(tmp_path, "failed-0.command") is not None

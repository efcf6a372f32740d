"""Node-hours of agents are counted in a file, for all servers and over their restarts."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from clusterctl.launcher.api.agents.plans import PERIOD_SECONDS, Limits
from clusterctl.shared.errors import ClusterctlError, ConfigError, SlurmError, UsageError


def spend(limits: Limits, hours: float, error: Exception | None = None) -> None:
    with limits.counted("submit", 1, hours) as done:
        if error:
            raise error
        done["run"] = "a run"


def test_what_was_submitted_counts_after_a_restart(tmp_path: Path) -> None:
    spend(Limits(4, 10, tmp_path), 6)
    again = Limits(4, 10, tmp_path)
    assert again.used() == 6
    with pytest.raises(UsageError, match="only 4 more until tomorrow"):
        spend(again, 4.5)
    spend(again, 4)
    with pytest.raises(UsageError):
        spend(again, 0.01)


def test_nodes_of_one_submission_are_limited(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="5 nodes are more than the 4"):
        Limits(4, 10, tmp_path).check(5, 0.1)


def test_only_the_last_day_counts(tmp_path: Path) -> None:
    now = [1000.0]
    limits = Limits(4, 10, tmp_path, clock=lambda: now[0])
    spend(limits, 10)
    now[0] += PERIOD_SECONDS - 1
    assert limits.used() == 10
    now[0] += 2
    assert limits.used() == 0
    now[0] = 0.0  # a clock that was put back gives nothing back
    assert limits.used() == 10


def test_a_refused_submission_is_given_back_and_an_uncertain_one_is_not(tmp_path: Path) -> None:
    limits = Limits(4, 10, tmp_path)
    for error in (UsageError("no"), ConfigError("no")):
        with pytest.raises(ClusterctlError):
            spend(limits, 3, error)
    assert limits.used() == 0
    for number, error in enumerate((SlurmError("no answer"), OSError("disk"), KeyboardInterrupt()), 1):
        with pytest.raises(type(error)):
            spend(limits, 2, error)  # type: ignore[arg-type]
        assert limits.used() == 2 * number


@pytest.mark.parametrize(
    "content",
    [b"{", b"[]\n", b'{"time": 1}\n', b'{"time": 1, "node_hours": "3"}\n', b'{"node_hours": true, "time": 2}\n'],
)
def test_a_damaged_file_allows_nothing(tmp_path: Path, content: bytes) -> None:
    limits = Limits(4, 10, tmp_path)
    spend(limits, 1)
    with limits.file.open("ab") as file:
        file.write(content)
    with pytest.raises(ConfigError, match="cannot count node-hours"):
        spend(limits, 1)


def test_servers_that_count_at_the_same_time_never_exceed_the_limit(tmp_path: Path) -> None:
    limits, refused = Limits(4, 5, tmp_path), []

    def submit() -> None:
        try:
            spend(limits, 1)
        except UsageError as error:
            refused.append(error)

    threads = [threading.Thread(target=submit) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (limits.used(), len(refused)) == (5, 3)

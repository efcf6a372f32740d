"""The runs of several clusters, queried in parallel; a cluster that does not answer delays nothing."""

from __future__ import annotations

import hashlib
import queue
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from clusterctl.launcher.api.find import look
from clusterctl.launcher.api.remote.cluster import remote_cluster
from clusterctl.launcher.api.remote.operations import ask, understood
from clusterctl.launcher.config import cache_folder
from clusterctl.shared.errors import ClusterctlError, HostError
from clusterctl.shared.record.files import write_text
from clusterctl.shared.record.ownership import make_private

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from clusterctl.launcher.api.find import RunStatuses
    from clusterctl.launcher.api.remote.cluster import RemoteCluster

PATIENCE_SECONDS = 3.0

Answer = TypeVar("Answer")


class Answered(NamedTuple):
    """The runs of one cluster; `age` is the age of the answer in seconds, `problem` why there is no newer one."""

    cluster: str
    found: RunStatuses | None
    age: float = 0.0
    problem: ClusterctlError | None = None

    @property
    def problems(self) -> list[ClusterctlError]:
        """Every warning to print below the tables."""
        return [*filter(None, [self.problem]), *(self.found.problems if self.found else ())]


def answers_within(patience: float, clusters: Sequence[str], ask: Callable[[str], Answer]) -> dict[str, Answer]:
    """The answers of `ask`, which raises nothing, for those clusters that it had within so many seconds."""
    answers: queue.SimpleQueue[tuple[str, Answer]] = queue.SimpleQueue()
    for name in clusters:
        # Daemon threads: one that is stuck ends with this process.
        threading.Thread(target=lambda name=name: answers.put((name, ask(name))), daemon=True).start()
    found: dict[str, Answer] = {}
    deadline = time.monotonic() + patience
    while len(found) < len(clusters):
        try:
            name, answer = answers.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            break
        found[name] = answer
    return found


def look_at(clusters: Sequence[str], patience: float = PATIENCE_SECONDS, **wanted: Any) -> list[Answered]:
    """The answer of each cluster within `patience` seconds, or else its last one. `wanted` as for `look`."""
    found = answers_within(patience, clusters, lambda name: _look(name, wanted))
    answered_by = []
    for name in clusters:
        silent = HostError(f"{name} did not answer within {patience:g} s", f"clusterctl status --cluster {name}")
        answered_by.append(found.get(name) or _last(name, wanted, silent))
    return answered_by


def _look(name: str, wanted: dict[str, Any]) -> Answered:
    try:
        place = remote_cluster(name)
        if place is None:
            return Answered(name, look(cluster=name, **wanted))
        answer = ask(place, "find:look", {"cluster": name, **wanted}, person=False)
        found = understood(place, "find:look", answer)
        with suppress(OSError):
            write_text(_kept(name, wanted), answer)
    except ClusterctlError as error:
        return _last(name, wanted, error)
    return Answered(name, found)


def _last(name: str, wanted: dict[str, Any], problem: ClusterctlError) -> Answered:
    """The cached last answer, if any, and the current problem."""
    with suppress(OSError, ClusterctlError):
        place, kept = remote_cluster(name), _kept(name, wanted)
        if place:
            return Answered(
                name,
                understood(place, "find:look", kept.read_text(errors="replace")),
                time.time() - kept.stat().st_mtime,
                problem,
            )
    return Answered(name, None, problem=problem)


def _kept(name: str, wanted: dict[str, Any]) -> Path:
    place: RemoteCluster | None = remote_cluster(name)
    question = repr((place and place.host, name, sorted(wanted.items())))
    folder = make_private(cache_folder() / "remote" / "status")
    return folder / f"{hashlib.sha256(question.encode()).hexdigest()[:16]}.json"

"""Questions to several clusters: their runs, and which of them would start a job first.

Each cluster is asked once, in parallel, and waited for briefly: one that does not answer delays nothing.
"""

from __future__ import annotations

import hashlib
import queue
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from clusterctl.launcher.api.find import look
from clusterctl.launcher.api.remote.cluster import remote_cluster
from clusterctl.launcher.api.remote.operations import ask, operation, understood
from clusterctl.launcher.api.settings import program_words, settings
from clusterctl.launcher.config import cache_folder
from clusterctl.launcher.config.shown import SILENT, Shown
from clusterctl.shared.errors import ClusterctlError, HostError, SlurmError, UsageError
from clusterctl.shared.record.files import write_text
from clusterctl.shared.record.ownership import make_private
from clusterctl.shared.record.plain_text import duration
from clusterctl.shared.spec.values import plural

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path
    from typing import Any

    from clusterctl.launcher.api.find import RunStatuses
    from clusterctl.launcher.api.remote.cluster import RemoteCluster
    from clusterctl.launcher.api.settings import Overrides, Program


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


_NOW_SECONDS = 60  # starts this close are the same: then free nodes decide, and the order in which they were named
_NEVER = float("inf")
_OPERATION = "several_clusters:offer"


@dataclass(frozen=True)
class Offer:
    """What one cluster answered: `seconds` until the start, None if Slurm names no time.

    `problem`: why it takes no part. `room` is the number of nodes with room for the job now.
    """

    cluster: str
    seconds: float | None = None
    partition: str = ""
    room: int = 0
    wanted: int = 1
    problem: str = ""

    def __str__(self) -> str:
        if self.problem:
            return f"{self.cluster}: {self.problem}"
        start = "at an unknown time" if self.seconds is None else f"in {duration(self.seconds)}"
        if self.seconds is not None and self.seconds <= _NOW_SECONDS:
            start = "now"
        where = f" in partition {self.partition}" if self.partition else ""
        return f"{self.cluster}: would start {start}{where}, {plural(self.room, 'node')} with room for {self.wanted}"

    @property
    def rank(self) -> tuple[float, int]:
        """The lower the better."""
        seconds = _NEVER if self.seconds is None else self.seconds
        if self.seconds is None and self.room >= self.wanted:
            seconds = _NOW_SECONDS + 1
        return (0.0 if seconds <= _NOW_SECONDS else seconds), -self.room


class Offers(Shown, list[Offer]):
    """The answers of several clusters, in the order in which they were named."""

    @property
    def best(self) -> Offer:
        """The one that starts the job first; of several, the one with more free nodes, then the one named first.

        Raises SlurmError if none takes part.
        """
        able = [one for one in self if not one.problem]
        if not able:
            message = "\n".join(["none of the clusters can start the job", *map(str, list(self))])
            raise SlurmError(message, f'to see what it needs, name only one: `cluster="{self[0].cluster}"`')
        return min(able, key=lambda one: one.rank)

    @property
    def lines(self) -> list[str]:
        """Each answer, and which one is the best. Raises SlurmError if none takes part."""
        return [f"{one}{' - chosen' * (one is self.best)}" for one in self]


@operation()
def offer(
    job: str | None = None,
    cluster: str | None = None,
    *,
    stage: str | None = None,
    program: Program = (),
    overrides: Overrides = (),
) -> Offer:
    """When `cluster` would start the job, by `sbatch --test-only` and its free nodes; nothing is submitted."""
    from clusterctl.launcher.api.submitting.submit import HasStages, plan, stage_names
    from clusterctl.launcher.slurm import Slurm
    from clusterctl.launcher.slurm.nodes import asked_of, room_for
    from clusterctl.launcher.submission.sbatch import SlurmRefused, estimate_start

    try:
        planned = plan(job, cluster, stage=stage, program=program, overrides=overrides)
    except HasStages:
        assert job is not None
        planned = plan(job, cluster, stage=stage_names(job)[0], overrides=overrides)
    resolved, now = planned.resolved, time.time()
    slurm, name = Slurm.of(resolved.cluster), resolved.cluster.name
    resources = resolved.job.resources
    try:
        found = estimate_start(planned.plan, slurm.path_of("sbatch"), slurm.environment)
    except SlurmRefused as refused:
        return Offer(name, problem=f"Slurm refuses the job: {refused.words}")
    inventory = slurm.nodes()
    partition = inventory.partition_for(found.partition if found else resources.partition)
    room = room_for(asked_of(resources), partition, inventory) if partition else None
    return Offer(
        name,
        max(0.0, found.start - now) if found else None,
        found.partition if found else "",
        room.nodes_with_room if room else 0,
        resources.held_nodes,
    )


def offers(
    clusters: str | Sequence[str],
    job: str | os.PathLike[str] | None = None,
    *,
    stage: str | None = None,
    program: Program = (),
    overrides: Overrides = (),
    patience: float = PATIENCE_SECONDS,
) -> Offers:
    """When each of `clusters`, a list or "a,b", would start the job; nothing is submitted.

    The other arguments are those of `submit`, which takes the `best` of them if its `cluster` names several. One that
    does not answer within `patience` seconds, or would ask for a password, takes no part. Raises UsageError if none is
    named.
    """
    clusters = names_in(clusters)
    name = None if job is None else str(job)

    def look(cluster: str) -> Offer:
        try:
            place = remote_cluster(cluster)
            if place is None:
                found = offer(name, cluster, stage=stage, program=program, overrides=overrides)
            else:
                from clusterctl.launcher.api.remote.request import Sends, load_payload

                words, changes = program_words(program), settings(overrides)
                payload = load_payload(
                    place.cluster, name, stage=stage, program=words, overrides=changes, sends=Sends.JOB
                )
                given = {"job": name, "cluster": cluster, "stage": stage, "program": words, "overrides": changes}
                found = understood(place, _OPERATION, ask(place, _OPERATION, given, payload, person=False))
            seconds = found.seconds  # a far machine is not trusted
            if seconds is not None and not 0 <= seconds < _NEVER:
                seconds = None
            return replace(found, cluster=cluster, seconds=seconds)
        except ClusterctlError as error:
            return Offer(cluster, problem=error.message)

    found = answers_within(patience, clusters, look)
    silent = f"no answer within {patience:g} s, left out"
    return Offers(found.get(cluster) or Offer(cluster, problem=silent) for cluster in clusters)


def choose(given: Mapping[str, Any]) -> str:
    """The cluster that a submission with these arguments goes to, of the several that `cluster` names.

    `progress` gets their answers. Raises UsageError, and SlurmError if none can start it.
    """
    if given.get("in_allocation"):
        raise UsageError("`in_allocation=` refers to one cluster, but several are named", "name that cluster")
    if any(given.get(name) for name in ("after", "after_any", "after_start")):
        raise UsageError("`after=` refers to runs of one cluster, but several are named", "name that cluster")
    names = names_in(given["cluster"])
    if len(names) == 1:
        return names[0]
    asked = {name: given[name] for name in ("stage", "program", "overrides") if name in given}
    found = offers(names, given.get("job"), **asked)
    progress = given.get("progress", SILENT)
    for line in found.lines:
        progress.begin(line)
    return found.best.cluster


def names_in(clusters: str | Sequence[str]) -> list[str]:
    """The clusters in a list, or in a text such as "a,b", each once. Raises UsageError."""
    texts = [clusters] if isinstance(clusters, str) else clusters
    names = [*dict.fromkeys(name.strip() for text in texts for name in text.split(",") if name.strip())]
    if not names:
        raise UsageError("no cluster named", 'for example `cluster="NAME,NAME"`')
    return names

"""Comparison of runs.

`compare` finds the differences between two runs: configuration, code by file and line, versions, image, and results.
`examine_sweep` and `examine_runs` rank several runs at one moment, with the curves of the best.
"""

from __future__ import annotations

import difflib
import os
import re
import stat
import time
import tomllib
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from clusterctl.launcher.config.secrets import Secrets, secrets_of
from clusterctl.launcher.config.shown import Shown
from clusterctl.launcher.observe.ended_runs import EndedRuns
from clusterctl.launcher.observe.history import History
from clusterctl.launcher.observe.status import statuses_of
from clusterctl.launcher.observe.sweeps import ranked, read_sweep, summarise, values_of
from clusterctl.launcher.slurm import Slurm
from clusterctl.launcher.submission.code_files import in_threads
from clusterctl.launcher.submission.snapshot import PARTS
from clusterctl.shared.errors import ConfigError, UsageError, reason
from clusterctl.shared.record.fields import read_fields
from clusterctl.shared.record.files import exists, is_folder, local_devices, open_regular, read_regular, read_whole
from clusterctl.shared.record.metrics import KNOWN, Better
from clusterctl.shared.record.states import State
from clusterctl.shared.spec import to_record
from clusterctl.shared.spec.keys import Difference, as_toml, differences, leaves, leaves_as_written, varying
from clusterctl.shared.spec.records import nearest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import IO

    from clusterctl.launcher.observe.run_record import RunRecord
    from clusterctl.launcher.observe.state import Status
    from clusterctl.launcher.observe.status import RunStatuses
    from clusterctl.shared.errors import ClusterctlError
    from clusterctl.shared.record.layout import RunDir, SweepDir
    from clusterctl.shared.record.metrics import Metric, Number
    from clusterctl.shared.spec import Cluster
    from clusterctl.shared.spec.keys import Key


_ASSIGNED = re.compile(r"""^[ \t]*(?:export[ \t]+)?(\w+)[ \t]*=[ \t]*["']?(.*?)["']?[ \t]*$""", re.MULTILINE)


class Result(NamedTuple):
    """The last value of a metric in each run; None if it has none."""

    metric: str
    first: float | None
    second: float | None


@dataclass(frozen=True)
class Comparison(Shown):
    """The differences between two runs. `code` is None if it cannot be compared; `problems` has the reasons.

    `configuration` has the job's keys, and the cluster's as `cluster.KEY`.
    """

    as_of: float
    statuses: tuple[Status, Status]
    configuration: tuple[Difference, ...]
    code: tuple[CodeChange, ...] | None
    versions: tuple[Difference, ...]
    image: tuple[Difference, ...]
    results: tuple[Result, ...]
    problems: tuple[ClusterctlError, ...] = field(default=(), compare=False)

    def line_differences(self) -> Iterator[FileDifference]:
        """The unified diffs of the code files that differ, without secrets."""
        runs = [status.record.run for status in self.statuses]
        folders = [run.snapshot for run in runs]
        changes = self.code or ()
        # The secrets that may appear in the code are from this environment, its job files and `.env` files.
        known = [secrets_of(status.record.job, status.record.cluster, {}).patterns for status in self.statuses]
        tables: list[object] = [dict(os.environ)]
        for change in changes:
            if change.name.endswith((".toml", "/.env")):
                tables += [variables_in(folder / change.name) for folder in folders]
        hidden = Secrets(tuple(dict.fromkeys(pattern for each in known for pattern in each))).having(*tables)
        for change in changes:
            first, second = [run.path for run in runs] if change.name == runs[0].git_patch.name else folders
            yield line_differences(first, second, change, hidden.hide)


def compare(first: RunDir, second: RunDir) -> Comparison:
    """Compare two runs. Raises ConfigError if a record cannot be read."""
    return compared(statuses_of([first, second]))


def compared(found: RunStatuses) -> Comparison:
    """Compare the two runs in `found`. Raises ConfigError if it contains only one."""
    if len(found.statuses) < 2:
        raise found.problems[0]
    before, after = found.statuses
    versions, images, packages = [], [], []
    for status in found.statuses:
        fields = read_fields(status.record.run.run_json)
        git, known = fields.table("git"), fields.table("versions").named_texts()
        commit = git.text("commit")
        own: dict[str, Any] = {"git commit": commit, "git changes": git.flag("dirty")} if commit else {}
        versions.append(known | own)
        packages.append(fields.table("environment").table("packages").named_texts())  # from a lock file
        digest = fields.table("image").text("digest") or None
        images.append([(("image",), status.record.job.container.image), (("digest",), digest)])
    absent = dict.fromkeys([name for installed in packages for name in installed], "not installed")
    for known, installed in zip(versions, packages, strict=True):
        known |= (absent if all(packages) else {}) | installed
    code: tuple[CodeChange, ...] | None = None
    problems: list[ClusterctlError] = list(found.problems)
    try:
        code = _code_changes(before.record.run, after.record.run)
    except ConfigError as error:
        problems.append(error)
    measured = before.metrics.keys() | after.metrics.keys()
    names = [*(name for name in KNOWN if name in measured), *sorted(measured - KNOWN.keys())]
    return Comparison(
        as_of=found.as_of,
        statuses=(before, after),
        configuration=differences(*(configuration(status.record) for status in found.statuses)),
        code=code,
        versions=differences(*([((name,), value) for name, value in known.items()] for known in versions)),
        image=differences(*images),
        results=tuple(Result(name, before.metrics.get(name), after.metrics.get(name)) for name in names),
        problems=tuple(problems),
    )


def configuration(record: RunRecord) -> Iterator[tuple[Key, Any]]:
    """The values that a run was submitted with, as in `Comparison.configuration`."""
    yield from leaves_as_written(to_record(record.job))
    for key, value in leaves(to_record(record.cluster)):
        yield ("cluster", *key), value


def _code_changes(first: RunDir, second: RunDir) -> tuple[CodeChange, ...]:
    for run in (first, second):
        if not is_folder(run.snapshot):
            message = f"cannot compare the code: the copy of {run.id} no longer exists: {run.snapshot}"
            raise ConfigError(message, "everything else is compared")
    found: list[CodeChange] = []
    try:
        # The uncommitted code is in the project's copy; without one, in the patch.
        if not any(exists(run.project) and any(run.project.iterdir()) for run in (first, second)):
            before, after = (read_whole(run.git_patch) if exists(run.git_patch) else b"" for run in (first, second))
            how = FileChange.ADDED if not before else FileChange.CHANGED if after else FileChange.REMOVED
            found += [CodeChange(first.git_patch.name, how)] if before != after else []
        return (*found, *code_changes(first.snapshot, second.snapshot))
    except (OSError, ValueError) as error:  # ValueError: a patch too large to read
        raise ConfigError(f"cannot compare the code: {reason(error)}", "everything else is compared") from error


def variables_in(path: Path) -> object:
    """The variables set by a job file or a `.env` file; None if it cannot be parsed."""
    try:
        text = read_whole(path).decode()
        return tomllib.loads(text).get("env") if path.suffix == ".toml" else dict(_ASSIGNED.findall(text))
    except (OSError, ValueError, RecursionError):
        return None


# The code snapshots of two runs, by file and, for text files, by line.

_LEFT_OUT = "__pycache__"
_CHUNK = 2**20
_MOST_BYTES = 2**19  # of a file compared line by line, which takes seconds at this size
_NO_NEWLINE = "\n\\ No newline at end of file"


class FileChange(StrEnum):
    """How a file changed from the first run to the second."""

    ADDED = "added"
    REMOVED = "removed"
    CHANGED = "changed"


class CodeChange(NamedTuple):
    """A file that differs, by its path in the snapshot: project/train.py, lib/clusterctl/..."""

    name: str
    change: FileChange


class FileDifference(NamedTuple):
    """A file that differs and its unified diff; None for binary and large files."""

    name: str
    change: FileChange
    lines: tuple[str, ...] | None


def code_changes(first: Path, second: Path) -> tuple[CodeChange, ...]:
    """The files that differ between two snapshots, the project's first. Raises OSError if one cannot be read."""
    if first == second:
        return ()
    before, after = _entries(first), _entries(second)
    unsure: list[tuple[str, os.DirEntry[str], os.DirEntry[str]]] = []
    found = dict.fromkeys(before.keys() - after.keys(), FileChange.REMOVED)
    found |= dict.fromkeys(after.keys() - before.keys(), FileChange.ADDED)
    for name in before.keys() & after.keys():
        same = _same(before[name], after[name])
        if same is None:
            unsure.append((name, before[name], after[name]))
        elif not same:
            found[name] = FileChange.CHANGED
    local = local_devices()
    remote = any(folder.stat().st_dev not in local for folder in (first, second))
    compared = in_threads(lambda item: _same_content(item[1].path, item[2].path), unsure, remote=remote)
    found |= {name: FileChange.CHANGED for (name, _, _), same in zip(unsure, compared, strict=True) if not same}
    own, *rest = PARTS
    named = (name for part in (*rest, own) for name in sorted(found) if name.startswith(f"{part}/"))
    return tuple(CodeChange(name, found[name]) for name in named)


def line_differences(first: Path, second: Path, change: CodeChange, hide: Callable[[str], str] = str) -> FileDifference:
    """The unified diff of one file; `hide` redacts secrets. An unreadable file counts as binary."""
    before = "" if change.change is FileChange.ADDED else _text_of_file(first / change.name)
    after = "" if change.change is FileChange.REMOVED else _text_of_file(second / change.name)
    if before is None or after is None:
        return FileDifference(*change, None)
    left = "/dev/null" if change.change is FileChange.ADDED else f"a/{change.name}"
    right = "/dev/null" if change.change is FileChange.REMOVED else f"b/{change.name}"
    lines = difflib.unified_diff(_lines(hide(before)), _lines(hide(after)), left, right, lineterm="")
    return FileDifference(*change, tuple(lines))


def _entries(snapshot: Path) -> dict[str, os.DirEntry[str]]:
    return {name: entry for part in PARTS for name, entry in _walk(str(snapshot), part)}


def _walk(snapshot: str, below: str) -> Iterator[tuple[str, os.DirEntry[str]]]:
    with os.scandir(f"{snapshot}/{below}") as listing:
        entries = list(listing)
    for entry in entries:
        name = f"{below}/{entry.name}"
        if not entry.is_dir(follow_symlinks=False):
            yield name, entry
        elif entry.name != _LEFT_OUT:
            yield from _walk(snapshot, name)


def _same(first: os.DirEntry[str], second: os.DirEntry[str]) -> bool | None:
    """Whether two files are the same; None if that takes a comparison of their contents."""
    one, other = first.stat(follow_symlinks=False), second.stat(follow_symlinks=False)
    if (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino):
        return True
    if one.st_mode != other.st_mode or one.st_size != other.st_size:
        return False
    if stat.S_ISLNK(one.st_mode):
        return os.readlink(first.path) == os.readlink(second.path)  # noqa: PTH115 - strings: there may be thousands
    return None if stat.S_ISREG(one.st_mode) else False


def _same_content(first: str, second: str) -> bool:
    with open_regular(Path(first)) as one, open_regular(Path(second)) as other:
        while (piece := one.read(_CHUNK)) == other.read(_CHUNK):
            if not piece:
                return True
    return False


def _text_of_file(path: Path) -> str | None:
    """The text of a file, or the target of a link; None for anything else."""

    def read(file: IO[bytes]) -> bytes:
        return file.read(_MOST_BYTES + 1)

    try:
        if path.is_symlink():
            return f"link to {os.readlink(path)}"  # noqa: PTH115 - unnormalized
        content = read_regular(path, read)
        return None if len(content) > _MOST_BYTES or b"\0" in content else content.decode()
    except (OSError, UnicodeDecodeError):
        return None


def _lines(text: str) -> list[str]:
    *lines, last = text.split("\n")
    return [*lines, last + _NO_NEWLINE] if last else lines


# Several runs at one moment.

MOST_CURVES = 32  # runs whose curves are read


@dataclass(frozen=True)
class RankedRun:
    """One of several runs: its short name, its values of the keys that differ, its score."""

    name: str
    status: Status
    settings: Mapping[str, str]
    score: Number | None = None
    history: History | None = None

    @property
    def finished(self) -> bool:
        return self.status.state is State.FINISHED


@dataclass(frozen=True)
class Several:
    """Runs at one moment: the finished ones, the best first, then the others, then those without a value of `metric`.

    `keys` are those that differ. `comparison` has all differences of two runs.
    """

    title: str
    as_of: float
    members: tuple[RankedRun, ...]
    keys: tuple[str, ...]
    metric: Metric | None
    problems: tuple[ClusterctlError, ...] = ()
    is_sweep: bool = False
    seconds_left: float | None = None
    comparison: Comparison | None = None

    @property
    def best(self) -> RankedRun | None:
        """The best finished run, or the best so far if none has finished; None if no run has a score."""
        first = self.members[0]
        return first if first.score is not None else None

    @property
    def ahead(self) -> RankedRun | None:
        """The best unfinished run, if its score is already better than that of the best finished one."""
        best, metric = self.best, self.metric
        other = next((one for one in self.members if not one.finished and one.score is not None), None)
        if not (best and best.finished and other and metric) or best.score is None or other.score is None:
            return None
        leads = other.score < best.score if metric.better is Better.LOWER else other.score > best.score
        return other if leads else None


@dataclass
class Seen:
    """What need not be read again when several runs are examined repeatedly: ended runs, and the curves so far."""

    ended: EndedRuns = field(default_factory=EndedRuns)
    histories: dict[RunDir, History] = field(default_factory=dict)


def examine_sweep(
    sweep: SweepDir,
    metric: str | None = None,
    slurm_of: Callable[[Cluster], Slurm] = Slurm.of,
    clock: Callable[[], float] = time.time,
    seen: Seen | None = None,
) -> Several:
    """The runs of `sweep`. Raises ConfigError if it or all its runs cannot be read, UsageError without the metric."""
    record, seen = read_sweep(sweep), seen or Seen()
    found = statuses_of(record.runs, slurm_of, clock, seen.ended)
    settings = {run: values_of(row) for run, row in zip(record.runs, record.settings, strict=True)}
    names = {run: str(place) for place, run in enumerate(record.runs)}
    members, ranked_by = _ranked(found, metric, settings, names, seen)
    left = summarise(record, found.statuses, found.as_of, metric).seconds_left
    return Several(
        title=sweep.id,
        as_of=found.as_of,
        members=members,
        keys=record.keys,
        metric=ranked_by,
        problems=found.problems,
        is_sweep=True,
        seconds_left=left,
    )


def examine_runs(
    runs: Sequence[RunDir],
    metric: str | None = None,
    slurm_of: Callable[[Cluster], Slurm] = Slurm.of,
    clock: Callable[[], float] = time.time,
) -> Several:
    """Any `runs`. Raises ConfigError if none can be read, and UsageError if none has the metric."""
    found = statuses_of(runs, slurm_of, clock)
    different = varying(*(configuration(status.record) for status in found.statuses))
    settings = {
        status.record.run: {
            key: values[place] if isinstance(values[place], str) else as_toml(values[place])
            for key, values in different.items()
        }
        for place, status in enumerate(found.statuses)
    }
    members, ranked_by = _ranked(found, metric, settings, {run: run.id for run in runs}, Seen())
    jobs = ", ".join(dict.fromkeys(status.record.job.name for status in found.statuses))
    comparison = compared(found) if len(runs) == 2 and len(found.statuses) == 2 else None
    return Several(
        title=f"{len(runs)} runs of {jobs}",
        as_of=found.as_of,
        members=members,
        keys=tuple(different),
        metric=ranked_by,
        problems=comparison.problems if comparison else found.problems,
        comparison=comparison,
    )


def _ranked(
    found: RunStatuses,
    metric: str | None,
    settings: Mapping[RunDir, Mapping[str, str]],
    names: Mapping[RunDir, str],
    seen: Seen,
) -> tuple[tuple[RankedRun, ...], Metric | None]:
    """The readable runs in the order of `Several.members`, and their ranking metric."""
    if not found.statuses:
        raise found.problems[0]
    scores = ranked(found.statuses, metric)
    if metric is not None and not scores:
        known = sorted(
            {name for status in found.statuses for name in status.metrics} - {metric}
        )  # its values may be NaN
        close = nearest(metric, dict.fromkeys(known))
        named = f"one of {', '.join(known[:20])}" if known else "they have not logged any metrics yet"
        raise UsageError(f"no value of {metric} in these runs", f"did you mean {close}?" if close else named)
    by_run = {one.status.record.run: one.value for one in scores}
    rest = [status for status in found.statuses if status.record.run not in by_run]
    members = []
    scored = sorted((one.status for one in scores), key=lambda status: status.state is not State.FINISHED)
    for place, status in enumerate([*scored, *rest]):
        run = status.record.run
        history = None
        if place < MOST_CURVES:
            history = seen.histories.setdefault(run, History(run, all_ranks=False))
            history.update(status.attempts)
        members.append(RankedRun(names[run], status, settings[run], by_run.get(run), history))
    return tuple(members), scores[0].metric if scores else None

"""Where everything of a run lies. The only place that knows the names inside a run directory."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from clusterctl.runs.files import is_folder, names_in

RUN_FORMAT = 2  # of the run directory, as run.json carries it: whoever changes what a reader must know raises it
# In format 1 each rank wrote files of its own: its events are read as those of a rank without a writer, not its beats.
READABLE_FORMATS = (1, 2)

SWEEP_FORMAT = 1  # of sweep.json

SHARED_FILES = ".files"  # in the folder of copies: files that several of them have
KNOWN_DIGESTS = ".digests"  # there, too: what is known of the files of the folders that were copied
ENVIRONMENTS = ".environments"  # there, too: archives of the modules of Python environments
TREES = ".trees"  # there, too: what is in the projects that came from other machines
_NUMBER = re.compile("0|[1-9][0-9]{0,8}")
_OF_RANK = re.compile("rank_(?P<number>[0-9]{1,9})")
_OF_NODE = re.compile("(?P<number>[0-9]{1,9})")


def code_folder(runs: Path) -> Path:
    """The folder of the copies of code of all runs in `runs`."""
    return runs / ".code"


class Inside:
    """The path of a file or folder in its owner's folder."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, owner: Attempt | RunDir | ArrayDir | SweepDir, kind: type) -> Path:
        return owner.path / self._name


@dataclass(frozen=True)
class Attempt:
    """One time that a run was started: `attempts/<number>`."""

    path: Path

    host_json = Inside("host.json")
    host_log = Inside("host.log")
    marks = Inside("marks")  # what the batch script decides from (`runs.marks`)
    rendezvous = Inside("rendezvous.json")
    secret = Inside("secret")  # by which the ranks, and the writers of their nodes, know each other (`runs.secret`)
    metrics = Inside("metrics.jsonl")
    origin_json = Inside("origin.json")  # the checkpoint that the attempt resumed from
    hang_lease = Inside("hang.lease")  # held by the node whose writer judges who is stuck (`runs.judgement`)
    hang_json = Inside("hang.json")  # the watchdog's alarm: which ranks are stuck, and every heartbeat at that moment
    hang_report_json = Inside("hang-report.json")  # the same of an alarm that ended nothing
    collectives = Inside("collectives")  # what NCCL's flight recorder wrote, a file a rank
    check = Inside("check")  # what each node wrote of its check before the ranks began (`runs.node_check`)
    check_json = Inside("check.json")  # which of them failed
    profile = Inside("profile")  # traces of some steps, a file a rank (`train.profile`)

    @property
    def number(self) -> int:
        return int(self.path.name)

    def beats(self, node: int) -> Path:
        """The heartbeats of the ranks of a node (`runs.heartbeats`), by the node's place among those of the job."""
        return self.path / "nodes" / f"{node:05}.beats"

    def node_events(self, node: int) -> Path:
        """What happened to the ranks of a node (`runs.events`)."""
        return self.path / "nodes" / f"{node:05}.events.jsonl"

    def events(self, rank: int) -> Path:
        """What happened to `rank` while its node had no writer."""
        return self.path / "events" / f"rank_{rank:05}.jsonl"

    def telemetry(self, node: str) -> Path:
        """What the leader of `node` (a host name) sampled there."""
        return self.path / "telemetry" / f"{node}.jsonl"

    def log(self, rank: int, stream: str = "out") -> Path:
        return self.path / "logs" / f"rank_{rank:05}.{stream}"

    def log_times(self, rank: int) -> Path:
        """When the lines of both logs were written (`runs.log_times`); only of workload "command"."""
        return self.path / "logs" / f"rank_{rank:05}.times"

    def flight_records(self) -> list[str]:
        """The files that NCCL's flight recorder wrote."""
        return [name for name in _names(self.collectives) if name.startswith("rank_")]

    def beat_files(self) -> dict[int, Path]:
        """Node -> the heartbeats of its ranks."""
        return _numbered(self.path / "nodes", ".beats", _OF_NODE)

    def node_event_files(self) -> dict[int, Path]:
        """Node -> the events of its ranks."""
        return _numbered(self.path / "nodes", ".events.jsonl", _OF_NODE)

    def event_files(self) -> dict[int, Path]:
        """Rank -> its own event file, for ranks that once had no writer."""
        return _numbered(self.path / "events", ".jsonl", _OF_RANK)

    def log_files(self, stream: str, rank: int | None = None) -> dict[int, Path]:
        """Rank -> its log file of `stream` ("out" or "err"); of one `rank` alone if it is given.

        That one is listed, too: on NFS a look at a missing file would hide it for a while.
        """
        if rank is None:
            return _numbered(self.path / "logs", f".{stream}", _OF_RANK)
        path = self.log(rank, stream)
        return {rank: path} if path.name in _names(path.parent) else {}


@dataclass(frozen=True)
class RunDir:
    """A run directory: the record of one run."""

    path: Path

    run_json = Inside("run.json")
    submission_json = Inside("submission.json")  # the Slurm job id; absent after a crash before sbatch answered
    script = Inside("script.sh")
    git_patch = Inside("git.patch")  # what was not committed when it was submitted
    code = Inside("code")  # a link to the snapshot, which runs of the same code share
    project = Inside("code/project")  # the job's code as it was submitted, read-only
    work = Inside("work")  # the tasks' working directory: the run's own copy of `project`, from its first start on
    environments = Inside("environments")  # links to archives of the Python environments that the run imports from
    pickles = Inside("submitit")  # what submitit keeps of the submission; no task reads it
    cancel_json = Inside("cancel.json")
    finished_json = Inside("finished.json")
    requeue_json = Inside("requeue.json")  # the last request for a restart: by which attempt, why, and when
    accounting_json = Inside("accounting.json")  # Slurm's accounting of the ended job, so that it is asked once
    notified = Inside("notified")  # a file for each try to send a message: what became of it
    trackers = Inside("trackers")  # how far each tracker has the run, and what W&B keeps of it
    tensorboard = Inside("tensorboard")  # event files
    report = Inside("report.html")
    checkpoints = Inside("checkpoints")
    weights = Inside("weights.pt")  # the trained model's parameters by name, as torch.load reads them
    submissions = Inside("submissions")  # what was submitted before the last `resume`: one numbered folder each
    attempts_folder = Inside("attempts")

    @property
    def id(self) -> str:
        return self.path.name

    @property
    def snapshot(self) -> Path:
        """Where `code` leads."""
        return Path(os.path.realpath(self.code))  # pathlib's raises for a link to itself

    @property
    def data_cache(self) -> Path:
        """Prepared data sets, shared by all runs of the folder."""
        return self.path.parent / ".data"

    def environment(self, number: int) -> Path:
        return self.environments / f"{number}.tar"

    def attempt(self, number: int) -> Attempt:
        return Attempt(self.attempts_folder / str(number))

    def attempts(self) -> list[Attempt]:
        """All attempts so far, the first one first."""
        try:
            names = names_in(self.attempts_folder)
        except (FileNotFoundError, NotADirectoryError):
            return []
        numbers = sorted(number for number in map(attempt_number, names) if number is not None)
        return [attempt for attempt in map(self.attempt, numbers) if is_folder(attempt.path)]


@dataclass(frozen=True)
class ArrayDir:
    """One Slurm array of a sweep: the folder in which its batch script starts."""

    path: Path

    array_json = Inside("array.json")  # which run each element is
    submission_json = Inside("submission.json")  # as a run's
    logs = Inside("logs")  # links to the slurm.log of each run
    pickles = Inside("submitit")


@dataclass(frozen=True)
class SweepDir:
    """A sweep: what its runs have in common. The runs lie beside those that are part of none, as `ID.0`, `ID.1`, ..."""

    path: Path

    sweep_json = Inside("sweep.json")
    rungs = Inside("rungs")  # the scores by which its runs stop early (`training.halving`)
    report = Inside("report.html")

    @classmethod
    def of(cls, runs: Path, sweep: str) -> SweepDir:
        return cls(runs / ".sweeps" / sweep)

    @property
    def id(self) -> str:
        return self.path.name

    def run(self, place: int) -> RunDir:
        return RunDir(self.path.parents[1] / f"{self.id}.{place}")

    def array(self, number: int) -> ArrayDir:
        return ArrayDir(self.path / str(number))

    def arrays(self) -> list[ArrayDir]:
        """All arrays that were submitted so far, the first one first."""
        names = sorted(int(name) for name in _names(self.path) if _NUMBER.fullmatch(name))
        return [self.array(number) for number in names]


def attempt_number(name: str) -> int | None:
    """The number of the attempt whose folder has this name; None for a folder that is none, such as a copy of one."""
    return int(name) if _NUMBER.fullmatch(name) else None


def _numbered(folder: Path, suffix: str, name: re.Pattern[str]) -> dict[int, Path]:
    """The files in `folder` by the number in their names, in its order; none where it cannot be read."""
    names = _names(folder)
    matches = [match for found in names if found.endswith(suffix) and (match := name.fullmatch(found[: -len(suffix)]))]
    return dict(sorted((int(match["number"]), folder / f"{match.string}{suffix}") for match in matches))


def _names(folder: Path) -> list[str]:
    try:
        return names_in(folder)
    except OSError:
        return []

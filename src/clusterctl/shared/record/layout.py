"""The layout of a run directory. The only module that knows the names of its files."""

from __future__ import annotations

import itertools
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path

from clusterctl.shared.record.files import names_in, status_of, with_retries

RUN_FORMAT = 2  # version of the run directory, stored in run.json; incremented with every incompatible change
# In format 1 each rank wrote its own files: the events are still read, like those of a rank without a writer.
READABLE_FORMATS = (1, 2)

SWEEP_FORMAT = 1  # of sweep.json

# In the folder of code copies:
SHARED_FILES = ".files"  # files that several copies share
KNOWN_DIGESTS = ".digests"  # cached digests of the files in copied folders
ENVIRONMENTS = ".environments"  # archives of the modules of Python environments
TREES = ".trees"  # manifests of projects from other machines
BUILT = ".environments"  # in a folder of runs, or of environments: those that are built from lock files
ENVIRONMENT_RECORD = "environment.json"  # in such an environment, written last
_SWEEPS = ".sweeps"
_NUMBER = re.compile("0|[1-9][0-9]{0,8}")
_OF_RANK = re.compile("rank_(?P<number>[0-9]{1,9})")
_OF_NODE = re.compile("(?P<number>[0-9]{1,9})")


def code_folder(runs: Path) -> Path:
    """The folder of the code copies of this user's runs in `runs`."""
    return own_place(runs, ".code")


def own_place(runs: Path, name: str) -> Path:
    """This user's folder `name` in `runs`, which may not exist yet.

    In a runs folder of somebody else's (root made it for many users), each user has one: `NAME-UID`, or `NAME` if an
    earlier version made it for this user. A name that others have taken is left to them.
    """
    user, plain = os.geteuid(), runs / name
    if _owner(runs, links=True) in (user, None) or _owner(plain) == user:
        return plain
    places = (runs / f"{name}-{user}{f'-{number}' * bool(number)}" for number in itertools.count())
    return next(place for place in places if _owner(place) in (user, None))


class Inside:
    """Descriptor for the path of a file or folder inside its owner's folder."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, owner: Attempt | RunDir | ArrayDir | SweepDir, kind: type) -> Path:
        return owner.path / self._name


@dataclass(frozen=True)
class Attempt:
    """One start of a run: `attempts/<number>`."""

    path: Path

    host_json = Inside("host.json")
    host_log = Inside("host.log")
    marks = Inside("marks")  # the batch script decides by these (`record.marks`)
    rendezvous = Inside("rendezvous.json")
    hostfile = Inside("hostfile")  # the nodes, for launchers that read them from a file
    secret = Inside("secret")  # authenticates ranks and node writers to each other (`record.secret`)
    metrics = Inside("metrics.jsonl")
    origin_json = Inside("origin.json")  # the checkpoint that the attempt resumed from
    hang_lease = Inside("hang.lease")  # held by the node whose writer finds the stuck ranks (`node.node_watch`)
    hang_json = Inside("hang.json")  # the watchdog's alarm: the stuck ranks, and all heartbeats at that moment
    hang_report_json = Inside("hang-report.json")  # the same for an alarm that did not end the attempt
    collectives = Inside("collectives")  # dumps of NCCL's flight recorder, one file per rank
    check = Inside("check")  # each node's report of its check before the ranks start (`node.node_check`)
    node_setup = Inside("node_setup")  # each node's result of the lines of `node_setup`, and what they printed
    guards = Inside("guards")  # each node's sign of life, and the nodes that miss theirs (`node.guard`)
    check_json = Inside("check.json")  # the nodes that failed
    script_out = Inside("script.out")  # of a batch script: a link to where it writes; host.log is one to its stderr
    script_err = Inside("script.err")  # ... if that is another file
    profile = Inside("profile")  # traces of some steps, one file per rank (`train.profile`)

    @property
    def number(self) -> int:
        return int(self.path.name)

    def beats(self, node: int) -> Path:
        """The heartbeats of the ranks of a node (`record.heartbeats`), by the node's index in the job."""
        return self.path / "nodes" / f"{node:05}.beats"

    def node_events(self, node: int) -> Path:
        """The events of the ranks of a node (`node.events`)."""
        return self.path / "nodes" / f"{node:05}.events.jsonl"

    def events(self, rank: int) -> Path:
        """The events of `rank` while its node had no writer."""
        return self.path / "events" / f"rank_{rank:05}.jsonl"

    def telemetry(self, node: str) -> Path:
        """Samples taken by the leader of `node` (a host name)."""
        return self.path / "telemetry" / f"{node}.jsonl"

    def log(self, rank: int, stream: str = "out") -> Path:
        return self.path / "logs" / f"rank_{rank:05}.{stream}"

    def log_times(self, rank: int) -> Path:
        """When the lines of both logs were written (`record.stamp`); only for workload "command"."""
        return self.path / "logs" / f"rank_{rank:05}.times"

    def flight_records(self) -> list[str]:
        """The dumps of NCCL's flight recorder."""
        return [name for name in _names(self.collectives) if name.startswith("rank_")]

    def beat_files(self) -> dict[int, Path]:
        """Node -> heartbeat file."""
        return _numbered(self.path / "nodes", ".beats", _OF_NODE)

    def node_event_files(self) -> dict[int, Path]:
        """Node -> event file."""
        return _numbered(self.path / "nodes", ".events.jsonl", _OF_NODE)

    def event_files(self) -> dict[int, Path]:
        """Rank -> its own event file, for ranks that were once without a writer."""
        return _numbered(self.path / "events", ".jsonl", _OF_RANK)

    def log_files(self, stream: str, rank: int | None = None) -> dict[int, Path]:
        """Rank -> its log file of `stream` ("out" or "err"), for a single `rank` if given.

        That one is found by listing too: on NFS, testing for a missing file would hide it for a while.
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
    submission_json = Inside("submission.json")  # the Slurm job ID; absent after a crash before sbatch answered
    script = Inside("script.sh")
    own_srun = Inside("bin/srun")  # the first one on the PATH of a batch script (`node.script_srun`)
    start = Inside("start")  # the interpreter of a batch script's copy (`node.script_start`)
    git_patch = Inside("git.patch")  # uncommitted changes at submission
    code = Inside("code")  # a link to the snapshot, shared by runs with the same code
    project = Inside("code/project")  # the job's code as submitted, read-only
    work = Inside("work")  # the tasks' working directory: the run's own copy of `project`, made at its first start
    environments = Inside("environments")  # links to archives of the Python environments that the run imports from
    venv = Inside("venv")  # a link to the Python environment that was built from its lock file
    pickles = Inside("submitit")  # submitit's files; no task reads them
    cancel_json = Inside("cancel.json")
    finished_json = Inside("finished.json")
    requeue_json = Inside("requeue.json")  # the last restart request: its attempt, reason and time
    successor_json = Inside("successor.json")  # the job in which the run goes on after the one that queued it, if any
    accounting_json = Inside("accounting.json")  # Slurm's accounting of the ended job, cached
    notified = Inside("notified")  # the result of each attempt to send a message, one file each
    trackers = Inside("trackers")  # each tracker's progress, and W&B's files
    tensorboard = Inside("tensorboard")  # event files
    result_json = Inside("result.json")  # what the function returned that `submit_function` ran
    report = Inside("report.html")
    checkpoints = Inside("checkpoints")
    weights = Inside("weights.pt")  # the trained model's parameters by name, for torch.load
    submissions = Inside("submissions")  # submissions before the last `resume`, one numbered folder each
    attempts_folder = Inside("attempts")
    begun = Inside("begun")  # of an array of a batch script: the indices of the elements that have directories

    @property
    def id(self) -> str:
        return self.path.name

    @property
    def runs(self) -> Path:
        """The folder of all runs. An array of a batch script has a directory like a run's in its sweep's."""
        return self.path.parents[2] if self.id.isdigit() else self.path.parent

    @property
    def snapshot(self) -> Path:
        """Where `code` leads."""
        return Path(os.path.realpath(self.code))  # Path.resolve raises for a link to itself

    @property
    def data_cache(self) -> Path:
        """Prepared data sets, shared by all of the user's runs in the folder."""
        return own_place(self.path.parent, ".data")

    def environment(self, number: int) -> Path:
        return self.environments / f"{number}.tar"

    def attempt(self, number: int) -> Attempt:
        return Attempt(self.attempts_folder / str(number))

    def attempts(self) -> list[Attempt]:
        """All attempts so far, in order. An empty folder is none: a batch script fills its own at once."""
        try:
            names = names_in(self.attempts_folder)
        except (FileNotFoundError, NotADirectoryError):
            return []
        numbers = sorted(number for number in map(attempt_number, names) if number is not None)
        return [attempt for attempt in map(self.attempt, numbers) if _has_content(attempt.path)]


@dataclass(frozen=True)
class ArrayDir:
    """One Slurm array of a sweep: the folder where its batch script starts."""

    path: Path

    array_json = Inside("array.json")  # the run of each element; none in that of a batch script of the user's own
    submission_json = Inside("submission.json")  # like a run's
    logs = Inside("logs")  # links to the slurm.log of each run
    pickles = Inside("submitit")


@dataclass(frozen=True)
class SweepDir:
    """A sweep: the data shared by its runs, which are beside other runs as `ID.0`, `ID.1`, ..."""

    path: Path

    sweep_json = Inside("sweep.json")
    rungs = Inside("rungs")  # scores for stopping runs early (`training.loop.Halving`)
    report = Inside("report.html")

    @classmethod
    def of(cls, runs: Path, sweep: str) -> SweepDir:
        """The sweep with this ID, of any user: its folder belongs to the owner of its runs."""
        plain = runs / _SWEEPS / sweep
        try:
            has_many_users = bool(status_of(runs).st_mode & stat.S_ISVTX)
        except OSError:
            has_many_users = False
        if not has_many_users:
            return cls(plain)
        there = _names(runs)
        first = min((name for name in there if name.rpartition(".")[0] == sweep), default=None)
        owner = _owner(runs / first) if first else os.geteuid()  # elements of an array may not have begun
        names = [_SWEEPS, *(name for name in there if name.startswith(f"{_SWEEPS}-"))]
        found = (runs / name / sweep for name in names)
        return next((cls(place) for place in found if owner is not None and _owner(place) == owner), cls(plain))

    @classmethod
    def new(cls, runs: Path, sweep: str) -> SweepDir:
        """Where this user's new sweep with this ID will be."""
        return cls(own_place(runs, _SWEEPS) / sweep)

    @property
    def id(self) -> str:
        return self.path.name

    @property
    def waiting(self) -> Path:
        """Of an array of a batch script, while elements have no directory: a file with all indices (`run_names`)."""
        return self.path.parent / ".arrays" / self.id

    def run(self, place: int) -> RunDir:
        return RunDir(self.path.parents[1] / f"{self.id}.{place}")

    def array(self, number: int) -> ArrayDir:
        return ArrayDir(self.path / str(number))

    def arrays(self) -> list[ArrayDir]:
        """All arrays submitted so far, in order."""
        names = sorted(int(name) for name in _names(self.path) if _NUMBER.fullmatch(name))
        return [self.array(number) for number in names]


def attempt_number(name: str) -> int | None:
    """The number of the attempt with this folder name; None for any other folder, such as a copy of one."""
    return int(name) if _NUMBER.fullmatch(name) else None


def _numbered(folder: Path, suffix: str, name: re.Pattern[str]) -> dict[int, Path]:
    """The files in `folder`, sorted by the number in their names; empty if it cannot be read."""
    names = _names(folder)
    matches = [match for found in names if found.endswith(suffix) and (match := name.fullmatch(found[: -len(suffix)]))]
    return dict(sorted((int(match["number"]), folder / f"{match.string}{suffix}") for match in matches))


def _has_content(folder: Path) -> bool:
    """Whether `folder` is a folder that contains anything; also if it may not be read."""
    try:
        return bool(names_in(folder))
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True


def _owner(path: Path, *, links: bool = False) -> int | None:
    """The owner of `path`, or of the folder that it leads to with `links`; None if there is none."""
    try:
        return with_retries(path.stat if links else path.lstat).st_uid
    except OSError:
        return None


def _names(folder: Path) -> list[str]:
    try:
        return names_in(folder)
    except OSError:
        return []


def current_attempt() -> Attempt | None:
    """The attempt that this process belongs to, or None outside a run."""
    folder, number = os.environ.get("CLUSTERCTL_RUN_DIR"), os.environ.get("CLUSTERCTL_ATTEMPT", "")
    return RunDir(Path(folder)).attempt(int(number)) if folder and number.isdigit() else None

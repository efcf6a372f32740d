"""Where everything of a run lies. The only place that knows the names inside a run directory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

RUN_FORMAT = 1  # of the run directory, as run.json carries it: whoever changes what a reader must know raises it


class Inside:
    """The path of a file or folder in its owner's folder."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, owner: Attempt | RunDir, kind: type) -> Path:
        return owner.path / self._name


@dataclass(frozen=True)
class Attempt:
    """One time that a run was started: `attempts/<number>`."""

    path: Path

    host_json = Inside("host.json")
    host_log = Inside("host.log")
    marks = Inside("marks")  # what the batch script decides from (`runs.marks`)
    rendezvous = Inside("rendezvous.json")
    metrics = Inside("metrics.jsonl")
    origin_json = Inside("origin.json")  # the checkpoint that the attempt resumed from
    hang_json = Inside("hang.json")  # the watchdog's alarm: which ranks are stuck, and every heartbeat at that moment
    collectives = Inside("collectives")  # what NCCL's flight recorder wrote, a file a rank
    profile = Inside("profile")  # traces of some steps, a file a rank (`train.profile`)

    @property
    def number(self) -> int:
        return int(self.path.name)

    def events(self, rank: int) -> Path:
        return self.path / "events" / f"rank_{rank:05}.jsonl"

    def heartbeat(self, rank: int) -> Path:
        return self.path / "heartbeats" / f"rank_{rank:05}"

    def stacks(self, rank: int) -> Path:
        """The stacks of all threads of `rank` when the alarm was raised."""
        return self.path / "stacks" / f"rank_{rank:05}.txt"

    def telemetry(self, node: str) -> Path:
        """What the leader of `node` (a host name) sampled there."""
        return self.path / "telemetry" / f"{node}.jsonl"

    def log(self, rank: int, stream: str = "out") -> Path:
        return self.path / "logs" / f"rank_{rank:05}.{stream}"

    def event_files(self) -> dict[int, Path]:
        """Rank -> its event file, for the ranks that have begun."""
        return _by_number((self.path / "events").glob("rank_*.jsonl"))

    def log_files(self, stream: str) -> dict[int, Path]:
        """Rank -> its log file of `stream` ("out" or "err")."""
        return _by_number((self.path / "logs").glob(f"rank_*.{stream}"))


@dataclass(frozen=True)
class RunDir:
    """A run directory: the record of one run."""

    path: Path

    run_json = Inside("run.json")
    submission_json = Inside("submission.json")  # the Slurm job id; absent after a crash before sbatch answered
    script = Inside("script.sh")
    code = Inside("code")  # a link to the snapshot, which runs of the same code share
    project = Inside("code/project")  # the job's code as it was submitted, read-only
    work = Inside("work")  # the tasks' working directory: the run's own copy of `project`, from its first start on
    pickles = Inside("submitit")
    waiting_pickle = Inside("submitit/waiting.pkl")  # known by this name before sbatch gives the job its number
    cancel_json = Inside("cancel.json")
    finished_json = Inside("finished.json")
    requeue_json = Inside("requeue.json")  # the last request for a restart: by which attempt, why, and when
    accounting_json = Inside("accounting.json")  # Slurm's accounting of the ended job, so that it is asked once
    report = Inside("report.html")
    checkpoints = Inside("checkpoints")
    weights = Inside("weights.pt")  # the trained model's parameters by name, as torch.load reads them
    submissions = Inside("submissions")  # what was submitted before the last `resume`: one numbered folder each
    attempts_folder = Inside("attempts")

    @property
    def id(self) -> str:
        return self.path.name

    @property
    def data_cache(self) -> Path:
        """Prepared data sets, shared by all runs of the folder."""
        return self.path.parent / ".data"

    def attempt(self, number: int) -> Attempt:
        return Attempt(self.attempts_folder / str(number))

    def attempts(self) -> list[Attempt]:
        """All attempts so far, the first one first."""
        try:
            found = _by_number(self.attempts_folder.iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return []
        return [Attempt(path) for path in found.values() if path.is_dir()]


def _by_number(paths: Iterable[Path]) -> dict[int, Path]:
    """The paths by the number at the end of their names, in its order; others are ignored."""
    ends = {path: path.stem.rpartition("_")[2] for path in paths}
    numbered = {int(end): path for path, end in ends.items() if end.isascii() and end.isdigit()}
    return dict(sorted(numbered.items()))

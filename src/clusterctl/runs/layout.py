"""Where everything of a run lies. The only place that knows the names inside a run directory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

RUN_FORMAT = 1  # of the run directory, as run.json carries it: whoever changes what a reader must know raises it


@dataclass(frozen=True)
class Attempt:
    """One time that a run was started: `attempts/<number>`."""

    path: Path

    @property
    def number(self) -> int:
        return int(self.path.name)

    @property
    def host_json(self) -> Path:
        return self.path / "host.json"

    @property
    def host_log(self) -> Path:
        return self.path / "host.log"

    @property
    def marks(self) -> Path:
        """What the batch script decides from (`runs.marks`)."""
        return self.path / "marks"

    @property
    def rendezvous(self) -> Path:
        return self.path / "rendezvous.json"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def origin_json(self) -> Path:
        """The checkpoint that the attempt went on from."""
        return self.path / "origin.json"

    def events(self, rank: int) -> Path:
        return self.path / "events" / f"rank_{rank:05}.jsonl"

    def heartbeat(self, rank: int) -> Path:
        return self.path / "heartbeats" / f"rank_{rank:05}"

    @property
    def hang_json(self) -> Path:
        """The watchdog's alarm: who stands still, and what every heartbeat said then."""
        return self.path / "hang.json"

    def stacks(self, rank: int) -> Path:
        """Where each thread of `rank` stood when the alarm was raised."""
        return self.path / "stacks" / f"rank_{rank:05}.txt"

    @property
    def collectives(self) -> Path:
        """What NCCL's flight recorder wrote, a file a rank."""
        return self.path / "collectives"

    @property
    def profile(self) -> Path:
        """Traces of some steps, a file a rank (`train.profile`)."""
        return self.path / "profile"

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

    @property
    def id(self) -> str:
        return self.path.name

    @property
    def run_json(self) -> Path:
        return self.path / "run.json"

    @property
    def submission_json(self) -> Path:
        """The Slurm job id, written when sbatch has answered; absent after a crash in between."""
        return self.path / "submission.json"

    @property
    def script(self) -> Path:
        return self.path / "script.sh"

    @property
    def code(self) -> Path:
        return self.path / "code"

    @property
    def pickles(self) -> Path:
        return self.path / "submitit"

    @property
    def waiting_pickle(self) -> Path:
        """The entry's pickle under a name known before sbatch gives the job its number."""
        return self.pickles / "waiting.pkl"

    @property
    def cancel_json(self) -> Path:
        return self.path / "cancel.json"

    @property
    def finished_json(self) -> Path:
        return self.path / "finished.json"

    @property
    def requeue_json(self) -> Path:
        """The last request for a restart: by which attempt, why, and when."""
        return self.path / "requeue.json"

    @property
    def accounting_json(self) -> Path:
        """What Slurm's accounting said of the job after its end, so that it is asked once."""
        return self.path / "accounting.json"

    @property
    def report(self) -> Path:
        """The HTML file of `clusterctl report`."""
        return self.path / "report.html"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def weights(self) -> Path:
        """The trained model's parameters by name, as torch.load reads them."""
        return self.path / "weights.pt"

    @property
    def submissions(self) -> Path:
        """What was submitted before the last `resume`: one numbered folder each."""
        return self.path / "submissions"

    @property
    def attempts_folder(self) -> Path:
        return self.path / "attempts"

    def attempt(self, number: int) -> Attempt:
        return Attempt(self.attempts_folder / str(number))

    def attempts(self) -> list[Attempt]:
        """All attempts so far, the first one first."""
        try:
            found = _by_number(self.attempts_folder.iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return []
        return [Attempt(path) for path in found.values() if path.is_dir()]

    @property
    def data_cache(self) -> Path:
        """Prepared data sets, shared by all runs of the folder."""
        return self.path.parent / ".data"


def _by_number(paths: Iterable[Path]) -> dict[int, Path]:
    """The paths by the number at the end of their names, in its order; what has none is nobody's."""
    ends = {path: path.stem.rpartition("_")[2] for path in paths}
    numbered = {int(end): path for path, end in ends.items() if end.isascii() and end.isdigit()}
    return dict(sorted(numbered.items()))

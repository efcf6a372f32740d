"""What each task runs: the one object that travels through submitit's pickle.

It is importable by name and holds one string, so that the pickle opens under any Python that has this package: a
function pickled by value from another Python crashes.
"""

from __future__ import annotations

import atexit
import importlib
import logging
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from signal import SIGTERM
from typing import TYPE_CHECKING

from clusterctl.errors import Cause, ClusterctlError, TaskError
from clusterctl.runs import fence
from clusterctl.runs.checkpoints import newer_attempt
from clusterctl.runs.context import Context
from clusterctl.runs.events import Events
from clusterctl.runs.files import read_json
from clusterctl.runs.layout import RunDir
from clusterctl.runs.metrics import current_attempt
from clusterctl.runs.place import Place
from clusterctl.runs.signals import EXIT_TERMINATED, KilledBy, StopRequest
from clusterctl.runs.stages import Stage
from clusterctl.runs.stamp import stamped_output
from clusterctl.runs.watchdog import watched
from clusterctl.spec import WORKLOADS, Job, from_record

if TYPE_CHECKING:
    from clusterctl.runs.heartbeats import Pulse
    from clusterctl.runs.layout import Attempt


@dataclass(frozen=True)
class Entry:
    """Run the job of `run_dir` as the task that the environment describes."""

    run_dir: str

    def __call__(self) -> None:
        """Run, with the time before each line of the output.

        An attempt that a newer one has replaced leaves with 0, whatever it says in its events: Slurm gave both the same
        job and step number, and its srun would end the newer one's tasks in place of its own.
        """
        attempt, leaving = current_attempt(), _Leaving()
        try:
            with stamped_output():
                self._run(attempt)
            leaving.code = 0
        except BaseException as error:
            if attempt is not None and newer_attempt(attempt) is not None:
                leaving.code = 0
                raise SystemExit(0) from None
            leaving.code = _exit_code(error)
            raise

    def _run(self, attempt: Attempt | None) -> None:
        """Install the signal handlers first, then import the task half by name.

        The first exception is in the event file before anything else happens. A ClusterctlError is the user's to mend:
        it ends the task with its message and hint, without a traceback.
        """
        place = Place.from_environment()
        events = Events(attempt, place.rank)
        stop = StopRequest()
        stop.install(on_terminate=lambda: events.exit(EXIT_TERMINATED, SIGTERM))
        events.began(place.local_rank, place.node_rank)
        if attempt is not None:
            fence.watch(attempt, lambda newer: _step_down(newer, events, stop))
        events.stage(Stage.IMPORTING)
        pulse: Pulse | None = None
        try:
            record = read_json(RunDir(Path(self.run_dir)).run_json)
            if record is None:
                hint = "the runs folder must be shared by all nodes"
                raise TaskError(f"no run.json in {self.run_dir}", hint, cause=Cause.LAUNCH)
            job = from_record(Job, record["job"])
            if attempt is not None:
                pulse = watched(attempt, place, events, job.watchdog)
            importlib.import_module(WORKLOADS[job.workload].module).main(Context(job, place, attempt, events, stop))
        except (ClusterctlError, ModuleNotFoundError) as raised:
            error = _explained(raised)
            events.exception(error)
            events.exit(error.exit_code)
            print(error.text, file=sys.stderr)
            raise SystemExit(error.exit_code) from None
        except SystemExit as leaving:
            events.exit(_exit_code(leaving), leaving.number if isinstance(leaving, KilledBy) else None)
            raise
        except BaseException as error:
            events.exception(error)
            events.exit(1)
            raise
        else:
            events.exit(0)
        finally:
            if pulse is not None:
                pulse.end()


class _Leaving:
    """Ends this process when everything that was to be done at its end is done, and frees nothing one by one.

    To take torch and numba apart takes an interpreter half a second to some seconds, at the end of every run and within
    the time between TERM and KILL. Made before what is imported: what that does at exit comes first.
    """

    def __init__(self) -> None:
        self.code = 1
        self._pid = os.getpid()
        atexit.register(self._end)

    def _end(self) -> None:
        if os.getpid() == self._pid:  # not in a process that was forked off
            logging.shutdown()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(self.code)


def _exit_code(error: BaseException) -> int:
    """What Python makes of an exception that nobody catches."""
    if not isinstance(error, SystemExit):
        return 1
    return error.code if isinstance(error.code, int) else 0 if error.code is None else 1


def _step_down(newer: int, events: Events, stop: StopRequest) -> None:
    """Leave to a newer attempt what belongs to the run."""
    events.record("superseded", by=newer)
    print(f"attempt {newer} of this run has begun: this one leaves", file=sys.stderr, flush=True)
    stop.exit_code = 0  # see Entry
    stop.terminate()


def _explained(raised: ClusterctlError | ModuleNotFoundError) -> ClusterctlError:
    """What is missing in the interpreter of the tasks is the user's to mend too."""
    if isinstance(raised, ClusterctlError):
        return raised
    hint = "install clusterctl[train] there, or name another interpreter as `python` in the cluster file"
    return TaskError(f"{sys.executable} has no module {raised.name}", hint)

"""The life of a task from start to exit (`__main__`)."""

from __future__ import annotations

import atexit
import importlib
import os
import sys
import threading
import time
import traceback
from contextlib import suppress
from pathlib import Path
from signal import SIGTERM
from typing import TYPE_CHECKING, Any, NoReturn

from clusterctl.shared.errors import Cause, ClusterctlError, TaskError
from clusterctl.shared.node.answers import Answers, register_dump, stacks_text
from clusterctl.shared.node.events import Context, Events
from clusterctl.shared.node.leftovers import end_own
from clusterctl.shared.node.node_link import NodeLink
from clusterctl.shared.node.signals import EXIT_TERMINATED, KilledBy, LeftForNow, StopRequest
from clusterctl.shared.record.checkpoints import SuccessorWatch, newer_attempt
from clusterctl.shared.record.files import lateness, read_json
from clusterctl.shared.record.heartbeats import Pulse
from clusterctl.shared.record.interpreter import adding
from clusterctl.shared.record.layout import Attempt, RunDir, current_attempt
from clusterctl.shared.record.marks import EXIT_RESTART
from clusterctl.shared.record.place import Place
from clusterctl.shared.record.stamp import stamped_output
from clusterctl.shared.record.states import State

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from clusterctl.shared.record.fields import Fields


def run_task(run_dir: str, users_path: Sequence[str] = ()) -> NoReturn:
    """Run the job of `run_dir` as the task that the environment describes, with a time on each output line, and exit.

    `users_path` are the folders of PYTHONPATH that are not on the import path yet. An attempt that a newer one has
    replaced exits with 0, even if its events record a failure: Slurm gave both the same job and step ID, and its srun
    would otherwise kill the newer one's tasks.
    """
    attempt, leaving = current_attempt(), _Leaving()
    try:
        with stamped_output():
            _run(attempt, run_dir, users_path)
        leaving.code = 0
    except BaseException as error:
        newer = None
        if attempt is not None:
            with suppress(FileNotFoundError):  # the run's folder may no longer be where it was
                newer = newer_attempt(attempt)
        if newer is not None:
            leaving.code = 0
            raise SystemExit(0) from None
        leaving.code = _exit_code(error)
        gone = attempt is not None and not attempt.path.exists()
        if isinstance(error, Exception) and not (gone and isinstance(error, OSError)):
            traceback.print_exception(error)
        if gone:  # the cause of whatever failed; it could not be recorded
            print(f"clusterctl[launch]: moved or removed during the run: {run_dir}", file=sys.stderr, flush=True)
        if isinstance(error, Exception):
            raise SystemExit(leaving.code) from None
        raise
    raise SystemExit(0)


def _run(attempt: Attempt | None, run_dir: str, users_path: Sequence[str]) -> None:
    """Install the signal handlers first, then import the task's code by name.

    A ClusterctlError ends the task with a message and hint instead of a traceback.
    """
    place = Place.from_environment()
    link = NodeLink(attempt, place, "task", register_dump()) if attempt else None
    events = Events(attempt, place.rank, link)
    stop = StopRequest()
    stop.install(on_terminate=lambda: events.exit(EXIT_TERMINATED, SIGTERM))
    stop.before_leaving = end_own
    if attempt is not None and link is not None:
        fence = Fence(attempt, lambda newer: _step_down(newer, events, stop))
        answers = Answers(attempt, place.rank, events, lambda: stacks_of(events), stop.leave)
        link.handlers = {"newer": fence.take, "alarm": answers.take, "leave": answers.leave}
        link.open()
        fence.watch(unless=lambda: link.connected)  # a thousand ranks that all look would burden the file server
    events.began(place.local_rank, place.node_rank)
    events.state(State.IMPORTING)
    pulse: Pulse | None = None
    try:
        record = _record(RunDir(Path(run_dir)))
        if record is None:
            hint = "the runs folder must be shared by all nodes"
            raise TaskError(f"no run.json in {run_dir}", hint, cause=Cause.LAUNCH)
        job = record["job"]
        if link is not None:
            link.introduce(watchdog=job["watchdog"])
            pulse = Pulse(events.heart, link.beat)
            pulse.start()
        _bind(job["resources"], place)
        if job["workload"] != "command":  # whose program imports in its own process
            _add_users_modules(users_path)
        workloads = importlib.import_module("clusterctl.engine.workloads")
        workloads.main(Context(job, place, attempt, events, stop))
    except (ClusterctlError, ModuleNotFoundError) as raised:
        error = raised
        if isinstance(error, ModuleNotFoundError):
            needed = adding("torch", "torch_geometric", "numpy", "scipy")
            hint = f"on that machine: {needed}; or set `python` in the cluster file"
            error = TaskError(f"{sys.executable} has no module {error.name}", hint)
        events.exception(error)
        events.exit(error.exit_code)
        print(error.text, file=sys.stderr)
        raise SystemExit(error.exit_code) from None
    except KilledBy as leaving:
        events.killed(leaving.number)
        raise
    except LeftForNow:
        events.exit(EXIT_RESTART)
        raise
    except SystemExit as leaving:
        events.exit(_exit_code(leaving))
        raise
    except BaseException as error:
        defect = _gpu_defect(error)
        events.exception(defect or error)
        events.exit(1, cut=_is_cut_off(error), broken=defect is not None)
        if defect is not None:
            print(defect.text, file=sys.stderr, flush=True)
        raise
    else:
        events.exit(0)
    finally:
        if pulse is not None:
            pulse.end()


def _bind(resources: Any, place: Place) -> None:
    """Keep this rank to a NUMA node if the job wants that. A node that cannot is named, and the rank goes on."""
    if not resources.get("numa"):
        return
    from clusterctl.shared.node import numa  # late: few jobs want it

    try:
        print(f"bound to {numa.bind(place.local_rank, resources.get('tasks_per_node') or 1)}", flush=True)
    except (OSError, ValueError) as error:
        print(f"warning: resources.numa: not bound: {error}", file=sys.stderr, flush=True)


def import_workload(run_dir: str, users_path: Sequence[str]) -> None:
    """Import what a task of this run imports before it connects to others."""
    record = _record(RunDir(Path(run_dir)))
    _add_users_modules(users_path)
    workloads = importlib.import_module("clusterctl.engine.workloads")
    importlib.import_module(workloads.module_of(record["job"]["workload"]))


def _record(run: RunDir) -> Any:
    """The content of run.json, which may become visible late on this node; None if it does not appear in time."""
    deadline = time.monotonic() + lateness(run.path)
    while (record := read_json(run.run_json)) is None and time.monotonic() < deadline:
        time.sleep(1)
    return record


def stacks_of(events: Events) -> str:
    """The stacks of the rank's program if it runs one that logs no steps, otherwise of this process."""
    observer = events.heart.observer
    return observer.stacks() if observer else stacks_text()


def _step_down(newer: int, events: Events, stop: StopRequest) -> None:
    events.record("superseded", by=newer)
    print(f"attempt {newer} of this run has started: this one exits", file=sys.stderr, flush=True)
    stop.exit_code = 0  # see run_task
    stop.terminate()


def _add_users_modules(users_path: Sequence[str]) -> None:
    sys.path[1:1] = [os.getcwd(), *users_path]  # noqa: PTH109


def _is_cut_off(error: BaseException) -> bool:
    """Whether a connection to another rank has failed. gloo raises plain RuntimeErrors, known by their source file."""
    kind, text = type(error), str(error)
    if kind.__module__.startswith("torch"):
        return kind.__name__ == "DistNetworkError" or (
            kind.__name__ == "DistBackendError" and "ncclRemoteError" in text
        )
    return kind is RuntimeError and "/gloo/transport/" in text.partition("]")[0]


def _gpu_defect(error: BaseException) -> TaskError | None:
    """An error that names this rank's broken GPU, if that is certain."""
    if not isinstance(error, RuntimeError):  # as torch's are
        return None
    try:
        found: TaskError | None = importlib.import_module("clusterctl.engine.task.gpus").gpu_defect(error)
    except Exception as failed:  # of the driver: the rank's own error is what counts
        print(f"clusterctl: cannot ask the GPUs for memory errors: {failed}", file=sys.stderr, flush=True)
        return None
    return found


def _exit_code(error: BaseException) -> int:
    """Python's exit code for an uncaught exception."""
    if not isinstance(error, SystemExit):
        return 1
    return error.code if isinstance(error.code, int) else 0 if error.code is None else 1


class Fence:
    """Calls `on_newer` once, with the attempt's number, when a newer attempt of the run has started.

    Two attempts can be alive at once: a disconnected node keeps training while Slurm starts the run again elsewhere.
    The node's writer checks for this; a rank without a writer checks itself.
    """

    def __init__(self, attempt: Attempt, on_newer: Callable[[int], None]) -> None:
        self._attempt, self._on_newer = attempt, on_newer
        self._lock = threading.Lock()
        self._seen = False

    def take(self, message: Fields) -> None:
        """Handle the writer's "newer" message."""
        if (newer := message.whole("number")) is not None:
            threading.Thread(target=self._see, args=(newer,), name="newer attempt", daemon=True).start()

    def watch(self, unless: Callable[[], bool], pause: float = 1.0) -> None:
        """Check every `pause` seconds in a thread, except while `unless` is true."""

        def look() -> None:
            successor = SuccessorWatch(self._attempt)
            while not self._seen:
                with suppress(OSError):  # the file system may be unavailable for a while
                    if not unless() and (newer := successor.look()) is not None:
                        self._see(newer)
                time.sleep(pause)

        threading.Thread(target=look, name="fence", daemon=True).start()

    def _see(self, newer: int) -> None:
        with self._lock:
            first, self._seen = not self._seen, True
        if first:
            self._on_newer(newer)


class _Leaving:
    """Ends this process after its exit handlers, without freeing its objects one by one.

    Freeing torch and numba takes up to several seconds at the end of every run, and between TERM and KILL. Created
    before the task's code is imported, so that the exit handlers of that code run first.
    """

    def __init__(self) -> None:
        self.code = 1
        self._pid = os.getpid()
        atexit.register(self._end)

    def _end(self) -> None:
        if os.getpid() == self._pid:  # not in a forked child
            if "logging" in sys.modules:
                sys.modules["logging"].shutdown()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(self.code)

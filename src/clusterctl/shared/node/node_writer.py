"""The writer of a node: a small process that writes the data of the node's ranks, and watches them.

A rank that cannot connect to the node's address starts a writer (`node_link`); a second writer cannot bind the address
and exits. It exits after its last rank. Each second it writes to one file (`NodeFiles`): the heartbeats, or another
one with waiting data; these take turns. Urgent data is written at once. It is a separate process, so that a rank whose
native code holds the GIL does not silence the others; it imports only the standard library.
"""

from __future__ import annotations

import json
import os
import selectors
import socket
import subprocess
import sys
import time
import traceback
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from clusterctl.shared.node.answers import DUMP_SIGNAL, LONGEST_STACKS
from clusterctl.shared.node.node_link import LONGEST_MESSAGE, address, ignore_signals, peer, post
from clusterctl.shared.node.node_watch import ANSWER_SECONDS, DUMP_SECONDS, NEIGHBOUR_SECONDS, NodeWatch
from clusterctl.shared.record.checkpoints import SuccessorWatch
from clusterctl.shared.record.fields import Fields
from clusterctl.shared.record.files import Lines, append, parse_record, read_lines, with_retries, write_text
from clusterctl.shared.record.heartbeats import BEAT_SECONDS, ENDED, Beat, gpu_idle, parse_beat, write_beats
from clusterctl.shared.record.interpreter import isolated
from clusterctl.shared.record.layout import Attempt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from clusterctl.shared.spec import Watchdog


_FIRST_SECONDS = 30.0  # without a rank
_PRODDED_SECONDS = 0.5  # how long faulthandler may take to write
_OF_BEATS = ("step", "phase", "step_seconds", "busy_seconds", "idle")  # fields of a beat copied into samples
_LONGEST_SAMPLE_SECONDS = 15.0  # if a sample covers more, the node was suspended


@dataclass(eq=False)
class Client:
    """A connected process of a rank: its task, or a program started by the task."""

    connection: socket.socket
    pid: int
    rank: int = -1
    local_rank: int = 0
    role: str = ""
    world_size: int = 0
    stacks: int | None = None  # a memory file to which faulthandler writes on DUMP_SIGNAL
    written: int = 0  # its last record on disk

    def send(self, kind: str, **more: Any) -> None:
        with suppress(OSError):  # it has ended, or does not read
            post(self.connection, {"kind": kind, **more})


@dataclass
class Hang:
    """An alarm of this node: its start, and the processes that have not answered."""

    since: float
    silent: set[Client]
    prodded: float | None = None
    left: bool = False


@dataclass
class NodeWriter:
    """One node's writer. `listener` is bound to the node's address."""

    attempt: Attempt
    node: int
    nodes: int
    listener: socket.socket
    clock: Callable[[], float] = time.monotonic
    processes: list[Client] = field(default_factory=list)
    beats: dict[int, Beat] = field(default_factory=dict)
    _locals: dict[int, int] = field(default_factory=dict)  # rank -> local rank
    _gpu_idle: float | None = None  # for how long all GPUs of the node have been idle
    _urgent: bool = False
    _numbers: dict[Client, int] = field(default_factory=dict)  # of the newest record of each process
    _watch: NodeWatch | None = None
    _hang: Hang | None = None
    _announced: str = ""  # the alarm that has been sent to the ranks
    _newer: int | None = None
    _wrote_beats: bool = False
    _notifier: subprocess.Popen[bytes] | None = None

    def __post_init__(self) -> None:
        self._files = NodeFiles(self.attempt, self.node)
        self._successor = SuccessorWatch(self.attempt, self.clock)
        self._neighbour_at = self.clock() + NEIGHBOUR_SECONDS
        self._turns: deque[tuple[Callable[[], bool], Callable[[], object]]] = deque(
            [
                (lambda: self._files.has_events, self._write_events),
                (lambda: self._files.has_samples, self._files.write_samples),
                (
                    lambda: self._watch is not None and self.nodes > 1 and self.clock() >= self._neighbour_at,
                    self._look_at_neighbour,
                ),
            ]
        )

    def run(self) -> None:
        """Serve the ranks until the last one has disconnected."""
        self.listener.setblocking(False)
        with selectors.DefaultSelector() as selector:
            selector.register(self.listener, selectors.EVENT_READ)
            alone_until, tick_at = self.clock() + _FIRST_SECONDS, self.clock() + BEAT_SECONDS
            while self.processes or self.clock() < alone_until:
                for key, _ in selector.select(max(0.0, tick_at - self.clock())):
                    if key.data is None:
                        self._accept(selector)
                    elif not self._receive(key.data):
                        selector.unregister(key.data.connection)
                        self._part(key.data)
                        alone_until = 0.0  # there was a rank: from now on it ends with the last one
                if self._urgent:
                    self._write_events()
                if (now := self.clock()) >= tick_at:
                    tick_at = max(tick_at + BEAT_SECONDS, now)
                    self.tick()
        self._write_events()
        self._write_beats()
        self._files.write_all_samples()

    def tick(self) -> None:
        """Called once a second."""
        if self._newer is None:
            with suppress(OSError):  # the file system may be unavailable for a while
                self._newer = self._successor.look()
                for process in self.processes if self._newer is not None else ():
                    process.send("newer", number=self._newer)
        if self._watch is not None:
            self._watch.look({rank: beat for rank, beat in self.beats.items() if rank in self._locals})
            self._answer_alarm(self._watch)
        # Beats take turns with the first thing that is due after the last one done: no kind delays another for long.
        for _ in range(len(self._turns) if self._wrote_beats else 0):
            self._turns.rotate(-1)
            is_due, act = self._turns[-1]
            if is_due():
                act()
                self._wrote_beats = False
                return
        self._write_beats()
        self._wrote_beats = True

    def _look_at_neighbour(self) -> None:
        assert self._watch is not None
        self._neighbour_at = max(self._neighbour_at + NEIGHBOUR_SECONDS, self.clock())
        self._watch.look_at_next()

    # --- the ranks

    def _accept(self, selector: selectors.BaseSelector) -> None:
        with suppress(OSError):
            connection, _ = self.listener.accept()
            connection.setblocking(False)
            pid, user = peer(connection)
            if user != os.geteuid():  # an abstract name has no permissions: every user of the node can connect
                connection.close()
                return
            process = Client(connection, pid)
            self.processes.append(process)
            selector.register(connection, selectors.EVENT_READ, process)

    def _receive(self, process: Client) -> bool:
        """Handle one message; False if the process has disconnected."""
        try:
            content, descriptors, _, _ = socket.recv_fds(process.connection, LONGEST_MESSAGE, 1)
        except (BlockingIOError, ConnectionResetError):  # reset: it left messages of ours unread; its last ones follow
            return True
        except OSError:
            return False
        for descriptor in descriptors:
            process.stacks = descriptor
        if not content:
            return False
        message = Fields(parse_record(content) or {})
        kind = message.text("kind")
        if kind == "hello":
            self._greet(process, message)
        elif process.role and kind == "beat" and (beat := parse_beat(message.table("beat"))) is not None:
            # A program's beats replace those of the task that started it; when it has ended, its step is kept.
            if process.role != "task" or beat.phase == ENDED or not self._program_of(process.rank):
                last = self.beats.get(process.rank)
                step = beat.step if last is None else max(beat.step, last.step)
                self.beats[process.rank] = replace(beat, step=step, gpu_idle=self._gpu_idle)
        elif process.role and kind == "record":
            self._take_record(process, message)
        elif process.role and kind == "sample":
            self._take_sample(message)
        return True

    def _greet(self, process: Client, hello: Fields) -> None:
        process.rank, process.local_rank = hello.whole("rank") or 0, hello.whole("local_rank") or 0
        again = hello.flag("again") and not process.role
        process.role = hello.text("role")
        self._locals[process.rank] = process.local_rank
        if again and process.role == "task":
            self._files.add_event(process.rank, {"event": "writer"})
        if self._watch is None and (settings := hello.table("watchdog")).content:
            ranks = hello.whole("world_size") or 1
            # Importing the class would load all of `spec`, which takes longer than the rest of this process's start.
            watchdog = cast("Watchdog", SimpleNamespace(**settings.content))
            self._watch = NodeWatch(self.attempt, self.node, self.nodes, ranks, watchdog, self.clock, self._notify)
        if self._newer is not None:
            process.send("newer", number=self._newer)

    def _program_of(self, rank: int) -> Client | None:
        return next((one for one in self.processes if one.rank == rank and one.role == "program"), None)

    def _take_record(self, process: Client, message: Fields) -> None:
        record = dict(message.table("record").content)
        self._numbers[process] = message.whole("number") or 0
        self._files.add_event(process.rank, record)
        if self._hang is not None and record.get("event") in ("hang", "exit"):
            self._hang.silent.discard(process)
        if record.get("event") == "exit":
            self._read_stacks(process)
            if last := self.beats.get(process.rank):  # it counts as exited, whatever happens to this process
                self.beats[process.rank] = replace(last, phase=ENDED)
                self._write_beats()
            # Before the rank leaves: Slurm kills what is left of a step, and the last sample has the run's peak.
            self._files.write_all_samples()
        self._urgent |= message.flag("urgent")

    def _take_sample(self, message: Fields) -> None:
        fields = message.table("sample")
        sample = dict(fields.content)
        seconds = min(fields.number("seconds") or 0.0, _LONGEST_SAMPLE_SECONDS)
        uses = [gpu.number("utilisation") for gpu in fields.tables("gpus")]
        self._gpu_idle = sample["gpu_idle"] = gpu_idle(self._gpu_idle, uses, seconds)
        sample["ranks"] = {
            str(rank): {name: getattr(beat, name) for name in _OF_BEATS} for rank, beat in sorted(self.beats.items())
        }
        self._files.add_sample(message.text("node"), sample)
        if sample.get("gpus"):
            for process in self.processes:
                process.send("gpus", gpus=sample["gpus"])

    def _part(self, process: Client) -> None:
        self._read_stacks(process)
        self.processes.remove(process)
        self._numbers.pop(process, None)
        process.connection.close()
        if process.stacks is not None:
            os.close(process.stacks)
        if self._hang is not None:
            self._hang.silent.discard(process)

    def _write_events(self) -> None:
        """Write the events, and notify each process which of its records are on disk."""
        self._urgent = False
        if self._files.has_events and self._files.write_events():
            for process, number in self._numbers.items():
                process.send("written", number=number)
            self._numbers.clear()

    def _write_beats(self) -> None:
        self._files.write_beats({self._locals[rank]: (rank, beat) for rank, beat in self.beats.items()})

    def _notify(self) -> None:
        """Send notifications of the alarm, if configured, from a separate process that is not waited for."""
        program, run = str(Path(__file__).parents[2] / "launcher" / "notifications"), str(self.attempt.path.parents[1])
        with suppress(OSError):
            self._notifier = subprocess.Popen(isolated(sys.executable, program, run), start_new_session=True)

    # --- the attempt

    def _answer_alarm(self, watch: NodeWatch) -> None:
        """Request the ranks' stacks, signal those that do not answer, and make all exit if the attempt ends."""
        now = self.clock()
        if watch.alarm != self._announced:
            self._announced = watch.alarm
            asked = {one for one in self.processes if one.role == "program" or not self._program_of(one.rank)}
            self._hang = Hang(now, asked)
            for process in self.processes:
                process.send("alarm", name=watch.alarm, asked=process in asked)
        hang = self._hang
        if hang is None or hang.left:
            return
        if hang.prodded is None and hang.silent and now >= hang.since + ANSWER_SECONDS and watch.alarm == "hang":
            hang.prodded = now
            # While C code holds the GIL, no Python code runs, but a C signal handler does.
            for process in [one for one in hang.silent if one.stacks is not None]:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(process.pid, DUMP_SIGNAL)
        elif hang.prodded is not None and now >= hang.prodded + _PRODDED_SECONDS:
            for process in self.processes:  # the signal may have woken one up, which then answers too
                self._read_stacks(process)
        done = not hang.silent and self.nodes == 1
        if watch.raised is not None and (done or now >= hang.since + DUMP_SECONDS):
            hang.left = True
            self._write_events()
            watch.end()
            for process in self.processes:
                process.send("leave")

    def _read_stacks(self, process: Client) -> None:
        """Record faulthandler's output as an event of the rank, once."""
        if process.stacks is None:
            return
        with suppress(OSError):
            content = os.pread(process.stacks, LONGEST_STACKS, 0)
            if content:
                self._files.add_event(process.rank, {"event": "frozen", "stacks": content.decode(errors="replace")})
                os.close(process.stacks)
                process.stacks = None


def main() -> None:
    """Run as the writer of a node, or exit if it has one. Arguments: attempt folder, node, number of nodes."""
    ignore_signals()
    folder, node, nodes = sys.argv[1:]
    attempt = Attempt(Path(folder))
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        listener.bind(address(attempt, int(node)))
    except OSError:  # another writer was faster
        return
    listener.listen(1024)
    with_retries(lambda: attempt.beats(0).parent.mkdir(exist_ok=True))
    try:
        NodeWriter(attempt, int(node), int(nodes), listener).run()
    except Exception:
        error = {"time": time.time(), "event": "writer", "error": traceback.format_exc()}
        append(attempt.node_events(int(node)), json.dumps(error).encode() + b"\n")
        raise


# The files of a node's writer, and the data waiting to be written to them.


_MOST_LEFT = 1 << 22  # bytes of events kept while the disk is full


@dataclass
class NodeFiles:
    """Data is written only by the `write` methods, each of which writes to one file."""

    attempt: Attempt
    node: int
    _events: list[bytes] = field(default_factory=list)
    _samples: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    _sample_files: dict[str, SampleFile] = field(default_factory=dict)

    def add_event(self, rank: int, record: Mapping[str, Any]) -> None:
        self._events.append(json.dumps({"rank": rank, "time": time.time(), **record}).encode() + b"\n")

    def add_sample(self, node: str, sample: dict[str, Any]) -> None:
        """Add a sample of the node named `node`."""
        self._samples.append((node, sample))

    @property
    def has_events(self) -> bool:
        return bool(self._events)

    @property
    def has_samples(self) -> bool:
        return bool(self._samples)

    def write_events(self) -> bool:
        """Write the waiting events; returns whether all are on disk. The rest is written with later ones."""
        content = b"".join(self._events)
        try:
            left = content[append(self.attempt.node_events(self.node), content) :]
        except OSError:  # waiting ranks will try to write themselves
            left = content
        self._events = [left] if left and len(left) < _MOST_LEFT else []
        return not left

    def write_beats(self, beats: Mapping[int, tuple[int, Beat]]) -> None:
        """Write beats: local rank -> rank and beat."""
        with suppress(OSError):
            write_beats(self.attempt.beats(self.node), beats)

    def write_samples(self) -> None:
        """Write all samples of the node with the oldest one."""
        node = self._samples[0][0]
        waiting = [sample for name, sample in self._samples if name == node]
        self._samples = [(name, sample) for name, sample in self._samples if name != node]
        for sample in waiting:
            with suppress(OSError, ValueError, KeyError):
                if node not in self._sample_files:
                    self._sample_files[node] = SampleFile(self.attempt.telemetry(node))
                self._sample_files[node].append(sample)

    def write_all_samples(self) -> None:
        while self.has_samples:
            self.write_samples()


# A file of samples of a node that stays small however long it is used.


_EVERY = 500  # new samples between two rounds of averaging
_FINENESS = 200  # a sample covers at most this fraction of its age: a week is 2,000 samples, a year 3,000
_PEAKS = frozenset({"memory", "memory_total"})  # a job's needs depend on the maximum, not the mean
_LATEST = frozenset({"ranks", "index", "cpus", "peak"})

Sample = dict[str, Any]


class SampleFile:
    """Writes a file that stays small: old samples are averaged into fewer, longer ones.

    Each line is one sample: `time` is its end, `seconds` its duration. From time to time the file is replaced
    atomically, so that a reader sees either the old or the new one.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines = Lines(path, path.parents[3])
        self._new = 0

    def append(self, sample: Sample) -> None:
        """Add the newest sample; its `time` is taken as the current time."""
        self._lines.append(sample)
        self._new += 1
        if self._new >= _EVERY:
            self._new = 0
            kept = thinned(read_lines(self._path), sample["time"])
            write_text(self._path, "".join(json.dumps(one) + "\n" for one in kept))
            self._lines.close()
            self._lines = Lines(self._path, self._path.parents[3])


def thinned(samples: Iterable[Sample], now: float) -> list[Sample]:
    """The samples in order of time; neighbours are merged while the result is short for its age."""
    kept: list[Sample] = []
    for sample in samples:
        if kept and sample["time"] - kept[-1]["time"] + kept[-1]["seconds"] <= (now - sample["time"]) / _FINENESS:
            kept[-1] = joined(kept[-1], sample)
        else:
            kept.append(sample)
    return kept


def joined(before: Sample, after: Sample) -> Sample:
    """Merge two consecutive samples: weighted means, the peak of memory, and the later value of everything else."""
    weights = (before["seconds"], after["seconds"])
    whole = _mean(before, after, weights)
    return {**whole, "time": after["time"], "seconds": round(sum(weights), 1)}


def _mean(before: Any, after: Any, weights: tuple[float, float], key: str = "") -> Any:
    if key in _LATEST:
        return after
    if isinstance(before, dict) and isinstance(after, dict):
        return {name: _mean(before.get(name), value, weights, name) for name, value in after.items()}
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        return [_mean(one, other, weights) for one, other in zip(before, after, strict=True)]
    if not isinstance(before, int | float) or not isinstance(after, int | float):
        return before if after is None else after
    if key in _PEAKS:
        return max(before, after)
    return round((before * weights[0] + after * weights[1]) / (sum(weights) or 1.0), 3)

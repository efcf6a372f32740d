"""A rank's part of the watchdog: at an alarm it sends the stacks of all its threads, and leaves.

Its node's writer tells it. Where the alarm is a report, it goes on. A process whose Python code cannot run is asked by
a signal, which a handler in C answers.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
import traceback
from contextlib import suppress
from typing import TYPE_CHECKING

from clusterctl.runs.events import Events
from clusterctl.runs.heartbeats import Pulse
from clusterctl.runs.node_link import NodeLink
from clusterctl.runs.watchdog import EXIT_HUNG

if TYPE_CHECKING:
    from collections.abc import Callable

    from clusterctl.runs.fields import Fields
    from clusterctl.runs.heartbeats import Heart
    from clusterctl.runs.layout import Attempt
    from clusterctl.runs.place import Place

DUMP_SIGNAL = signal.SIGRTMIN + 5  # default: death; so it is sent only to processes that have registered for it
LONGEST_STACKS = 32_000  # characters in the events; readers look at the end of them
_LEAVE_SECONDS = 10.0  # srun ends the other ranks when the first has left; should it not, they leave by themselves


class Answers:
    """One process's answer to an alarm, on a thread of its own; `stacks` tells where it is. None: it does not leave."""

    def __init__(
        self,
        attempt: Attempt,
        rank: int,
        events: Events,
        stacks: Callable[[], str],
        leave: Callable[[int], None] | None = os._exit,
    ) -> None:
        self._attempt, self._rank, self._events, self._stacks, self._leave = attempt, rank, events, stacks, leave
        self._leaving = threading.Event()

    def take(self, message: Fields) -> None:
        """Answer the writer's message "alarm"."""
        hung, asked = message.text("name") == "hang", message.flag("asked")
        threading.Thread(target=self.answer, args=(hung, asked), name="answer", daemon=True).start()

    def leave(self, _: Fields | None = None) -> None:
        """All ranks of the node have answered, or never will."""
        self._leaving.set()

    def answer(self, hung: bool, asked: bool) -> None:
        """Record the stacks of all threads if `asked`; where the attempt ends, leave."""
        if hung:
            _ask_flight_recorder(self._attempt, self._rank)
        if asked:
            self._events.record("hang", stacks=self._stacks()[:LONGEST_STACKS])
        if hung and self._leave is not None:
            self._leaving.wait(_LEAVE_SECONDS)
            self._events.exit(EXIT_HUNG)
            self._leave(EXIT_HUNG)


def beating(heart: Heart, attempt: Attempt, place: Place) -> None:
    """Begin to send the heartbeats of a rank from this process, a program that a task started."""
    link = NodeLink(attempt, place, "program", register_dump())
    events = Events(attempt, place.rank, link)
    answers = Answers(attempt, place.rank, events, stacks_text, leave=None)  # its task leaves, and ends it
    link.handlers = {"alarm": answers.take}
    link.open()
    Pulse(heart, link.beat).start()


def register_dump() -> int | None:
    """Let DUMP_SIGNAL write this process's stacks, whatever its threads do, into the memory file that is returned."""
    try:
        stacks = os.memfd_create("stacks")
        faulthandler.register(DUMP_SIGNAL, stacks, all_threads=True)
    except (OSError, ValueError, AttributeError):  # a kernel or a Python without them
        return None
    return stacks


def _ask_flight_recorder(attempt: Attempt, rank: int) -> None:
    """Have NCCL write down this rank's last collectives: torch listens on a pipe of this name, where it uses NCCL."""
    with suppress(OSError):
        pipe = os.open(attempt.collectives / f"ask_{rank}.pipe", os.O_WRONLY | os.O_NONBLOCK)
        try:
            os.write(pipe, b"1\n")
        finally:
            os.close(pipe)


def stacks_text() -> str:
    """The stacks of all threads but the one that asks, the main thread's first, the innermost call last."""
    main, own = threading.main_thread().ident, threading.get_ident()
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    frames = sorted(sys._current_frames().items(), key=lambda item: item[0] != main)  # noqa: SLF001 - the only way
    parts = [
        f"Thread {names.get(ident, ident)}:\n" + "".join(traceback.format_stack(frame))
        for ident, frame in frames
        if ident != own
    ]
    return "\n".join(parts)

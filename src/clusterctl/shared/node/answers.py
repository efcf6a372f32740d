"""A rank's part of the watchdog: on an alarm it sends the stacks of all its threads and exits.

The alarm comes from its node's writer. If it is only a report, the rank continues. A process that cannot run Python
code gets a signal instead, which a C handler answers.
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

from clusterctl.shared.node.events import Events
from clusterctl.shared.node.node_link import NodeLink
from clusterctl.shared.record.heartbeats import EXIT_HUNG, Pulse

if TYPE_CHECKING:
    from collections.abc import Callable

    from clusterctl.shared.record.fields import Fields
    from clusterctl.shared.record.heartbeats import Heart
    from clusterctl.shared.record.layout import Attempt
    from clusterctl.shared.record.place import Place

DUMP_SIGNAL = signal.SIGRTMIN + 5  # kills by default, so it is sent only to processes that handle it
LONGEST_STACKS = 32_000  # characters in the events; readers look at the end of them
_LEAVE_SECONDS = 10.0  # srun ends the other ranks when the first one exits; if it does not, they exit by themselves


class Answers:
    """Answers an alarm in a separate thread; `stacks` returns the process's stacks. `leave` None: it does not exit."""

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
        """Handle the writer's "alarm" message."""
        hung, asked = message.text("name") == "hang", message.flag("asked")
        threading.Thread(target=self.answer, args=(hung, asked), name="answer", daemon=True).start()

    def leave(self, _: Fields | None = None) -> None:
        """All ranks of the node have answered, or never will."""
        self._leaving.set()

    def answer(self, hung: bool, asked: bool) -> None:
        """Record the stacks of all threads if `asked`; exit if the attempt ends."""
        if hung:
            with suppress(OSError):  # NCCL dumps its last collectives: torch listens on this named pipe if it uses NCCL
                pipe = os.open(self._attempt.collectives / f"ask_{self._rank}.pipe", os.O_WRONLY | os.O_NONBLOCK)
                with os.fdopen(pipe, "wb") as request:
                    request.write(b"1\n")
        if asked:
            self._events.record("hang", stacks=self._stacks()[:LONGEST_STACKS])
        if hung and self._leave is not None:
            self._leaving.wait(_LEAVE_SECONDS)
            self._events.exit(EXIT_HUNG)
            self._leave(EXIT_HUNG)


def beating(heart: Heart, attempt: Attempt, place: Place) -> None:
    """Send a rank's heartbeats from this process, a program started by its task."""
    link = NodeLink(attempt, place, "program", register_dump())
    events = Events(attempt, place.rank, link)
    answers = Answers(attempt, place.rank, events, stacks_text, leave=None)  # the task ends this program and exits
    link.handlers = {"alarm": answers.take}
    link.open()
    Pulse(heart, link.beat).start()


def register_dump() -> int | None:
    """Make DUMP_SIGNAL write this process's stacks, whatever its threads are doing, to the returned memory file."""
    try:
        stacks = os.memfd_create("stacks")
        faulthandler.register(DUMP_SIGNAL, stacks, all_threads=True)
    except (OSError, ValueError, AttributeError):  # not supported by this kernel or Python
        return None
    return stacks


def stacks_text() -> str:
    """The stacks of all threads except the caller's, the main thread first, the innermost call last."""
    main, own = threading.main_thread().ident, threading.get_ident()
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    frames = sorted(sys._current_frames().items(), key=lambda item: item[0] != main)  # noqa: SLF001 - the only way
    parts = [
        f"Thread {names.get(ident, ident)}:\n" + "".join(traceback.format_stack(frame))
        for ident, frame in frames
        if ident != own
    ]
    return "\n".join(parts)

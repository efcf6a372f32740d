"""Signals inside a task: a stop request is a flag that the training loop checks, and TERM has a deadline.

Python runs its handlers between bytecodes of the main thread, which may block in a collective for minutes. So a thread
reads the wake-up descriptor, to which the C handler writes immediately.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

WARNING_SIGNAL = signal.SIGUSR2
TERM_GRACE_SECONDS = 3.0
EXIT_TERMINATED = 128 + signal.SIGTERM
_HANDLED = (WARNING_SIGNAL, signal.SIGTERM, signal.SIGCONT)


class KilledBy(SystemExit):
    """Exit like a shell whose child was killed by signal `number`; the exit event records it."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.number = number


class LeftForNow(SystemExit):
    """Exit with 0, so that srun does not end the other ranks, and with the mark of a rank that is to start again."""

    def __init__(self) -> None:
        super().__init__(0)


class StopRequest:
    """Whether this process was asked to stop: `warned` by the warning signal, `terminated` by TERM.

    `changed` is set by either. A thread that waits for it must clear it before checking the flags.
    """

    def __init__(self) -> None:
        self.changed = threading.Event()
        self.warned = False
        self.terminated = False
        self.exit_code = EXIT_TERMINATED  # of a process that did not exit by itself within the grace period
        self.leaving = False  # this process is about to end, whatever its main thread does
        self.before_leaving: Callable[[], None] = lambda: None
        self.hear_out: Callable[[], None] = lambda: None  # TERM counts once this has returned
        self._on_terminate: Callable[[], None] = lambda: None
        self._grace = TERM_GRACE_SECONDS
        self._leave_at = 0.0
        self._ending = threading.Lock()  # held by the first call of `terminate`, for good

    def install(self, on_terminate: Callable[[], None] = lambda: None, grace: float = TERM_GRACE_SECONDS) -> None:
        """Handle USR2, TERM and CONT (which Slurm sends after TERM) in this process, but not in forked children.

        This includes a warning that was blocked by the batch script's `env --block-signal`. On TERM: call
        `on_terminate` immediately, in a thread, then exit with 143 after `grace` seconds if the program is still
        running: ranks that ignored TERM would live until Slurm's KillWait, 30 s by default.
        """
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        for number in _HANDLED:
            signal.signal(number, lambda *_: None)
        # A child shares the wake-up pipe: a signal it gets before it resets the pipe would count as ours.
        block = partial(signal.pthread_sigmask, signal.SIG_BLOCK, _HANDLED)
        os.register_at_fork(before=block, after_in_parent=_unblock, after_in_child=_restore_defaults)
        self._on_terminate, self._grace = on_terminate, grace
        _unblock()

        def watch() -> None:
            while True:
                for number in os.read(reader, 64):
                    if number == WARNING_SIGNAL:
                        self.warned = True
                        self.changed.set()
                    elif number == signal.SIGTERM:
                        self.terminate()

        threading.Thread(target=watch, name="signals", daemon=True).start()

    def terminate(self) -> None:
        """React to TERM: set the flag, and end the process after the grace period. Call it in a thread."""
        if not self._ending.acquire(blocking=False):
            return
        self._leave_at = time.monotonic() + self._grace
        self.hear_out()
        self.terminated = True
        self.changed.set()
        self._on_terminate()
        while (left := self._leave_at - time.monotonic()) > 0:
            time.sleep(left)
        self.leave(self.exit_code)

    def leave(self, code: int) -> None:
        """End this process at once, after what it has started."""
        self.leaving = True
        with suppress(Exception):
            self.before_leaving()
        os._exit(code)

    def hold(self, seconds: float) -> None:
        """Give the program `seconds` from now, instead of the rest of the grace period, to exit by itself."""
        self._leave_at = time.monotonic() + seconds


def _restore_defaults() -> None:
    """In a forked child (a data loader's worker, a shell): TERM kills as usual, and the warning is ignored."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGCONT, signal.SIG_DFL)
    signal.signal(WARNING_SIGNAL, signal.SIG_IGN)
    _unblock()


def _unblock() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _HANDLED)

"""Signals inside a task: a request to stop is a flag that the loop looks at, and TERM has a deadline.

Python runs its handlers between bytecodes of the main thread, which may sit in a collective for minutes. So a thread
reads the wake-up descriptor, which the C handler writes at once whatever the main thread does.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

WARNING_SIGNAL = signal.SIGUSR2
TERM_GRACE_SECONDS = 3.0
EXIT_TERMINATED = 128 + signal.SIGTERM
_HANDLED = (WARNING_SIGNAL, signal.SIGTERM, signal.SIGCONT)


class KilledBy(SystemExit):
    """Leave as a shell does whose child was ended by signal `number`; the exit event names it."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.number = number


class StopRequest:
    """Whether this process was asked to stop: `warned` by the warning signal, `terminated` by TERM.

    `changed` is set by either. A thread that waits for it has to clear it before it looks.
    """

    def __init__(self) -> None:
        self.changed = threading.Event()
        self.warned = False
        self.terminated = False
        self.exit_code = EXIT_TERMINATED  # of a process that did not leave by itself within the grace
        self._on_terminate: Callable[[], None] = lambda: None
        self._grace = TERM_GRACE_SECONDS
        self._leave_at = 0.0

    def install(self, on_terminate: Callable[[], None] = lambda: None, grace: float = TERM_GRACE_SECONDS) -> None:
        """Take over USR2, TERM and CONT (which Slurm sends after TERM) in this process, not in forked children.

        A warning that the batch script's `env --block-signal` held back counts too. On TERM: `on_terminate` at once,
        from a thread, then exit 143 after `grace` seconds if the program is still there: ranks that ignored TERM would
        live until Slurm's KillWait, 30 s by default.
        """
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        for number in _HANDLED:
            signal.signal(number, lambda *_: None)
        # A child shares the wake-up pipe: a signal that it gets before it lets go of the pipe would be taken for ours.
        os.register_at_fork(before=_block, after_in_parent=_unblock, after_in_child=_restore_defaults)
        self._on_terminate, self._grace = on_terminate, grace
        _unblock()
        threading.Thread(target=self._watch, args=(reader,), name="signals", daemon=True).start()

    def terminate(self) -> None:
        """What TERM does: raise the flag, and end the process when the grace is over. To be called from a thread."""
        if self.terminated:
            return
        self._leave_at = time.monotonic() + self._grace
        self.terminated = True
        self.changed.set()
        self._on_terminate()
        while (left := self._leave_at - time.monotonic()) > 0:
            time.sleep(left)
        os._exit(self.exit_code)

    def hold(self, seconds: float) -> None:
        """Give the program `seconds` from now, in place of the rest of the grace, to leave by itself."""
        self._leave_at = time.monotonic() + seconds

    def _watch(self, reader: int) -> None:
        while True:
            for number in os.read(reader, 64):
                if number == WARNING_SIGNAL:
                    self.warned = True
                    self.changed.set()
                elif number == signal.SIGTERM:
                    self.terminate()


def _restore_defaults() -> None:
    """A forked helper process (a data loader's worker, a shell) dies of TERM as usual, and ignores the warning."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGCONT, signal.SIG_DFL)
    signal.signal(WARNING_SIGNAL, signal.SIG_IGN)
    _unblock()


def _block() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, _HANDLED)


def _unblock() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _HANDLED)

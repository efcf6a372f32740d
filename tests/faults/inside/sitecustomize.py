"""On the PYTHONPATH of a run for faults: signals make its Python raise or exhaust memory, and a training slows down.

Both signals are ignored by default, so one that arrives before this is imported kills no process. The first attempt of
a training gets slower from its first checkpoint on, until a file `go` exists: so it cannot end before its fault.
"""

import os
import signal
import sys
import time
from pathlib import Path

BLOCK = 100 << 20
WORK, LONGER, LONGEST = 0.05, 0.2, 3.0  # seconds; WORK is CPU time
pause = 0.0
RUN = Path(os.environ.get("CLUSTERCTL_RUN_DIR", ""))


def raise_error(*_: object) -> None:
    raise ValueError("no such layer: 7")


def eat(*_: object) -> None:
    eaten = []
    while True:
        eaten.append(bytearray(b"x") * BLOCK)


def dawdle(*_: object) -> None:
    global pause
    # A standby is of no attempt, and forks the ranks of later ones, too.
    if (RUN / "go").exists() or os.environ.get("CLUSTERCTL_ATTEMPT", "0") != "0":
        return
    if "CLUSTERCTL_ATTEMPT" in os.environ and "torch" in sys.modules and (RUN / "checkpoints").is_dir():
        pause = min(pause + LONGER, LONGEST)
        time.sleep(pause)
    signal.setitimer(signal.ITIMER_PROF, WORK)


signal.signal(signal.SIGURG, raise_error)
signal.signal(signal.SIGWINCH, eat)
if any(word.endswith("shared/node/__main__.py") for word in sys.orig_argv):
    signal.signal(signal.SIGPROF, dawdle)
    signal.siginterrupt(signal.SIGPROF, False)
    signal.setitimer(signal.ITIMER_PROF, WORK)
    if "CLUSTERCTL_ATTEMPT" not in os.environ:  # a standby forks ranks, which inherit the handler but no timer
        os.register_at_fork(after_in_child=lambda: signal.setitimer(signal.ITIMER_PROF, WORK))

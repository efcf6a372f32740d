"""On the PYTHONPATH of a run that is to be struck: a signal makes its Python raise, or eat memory; and it dawdles.

Both signals are ignored by default, so that one which comes before this is in place kills nobody. The first attempt of
a training goes ever slower from its first checkpoint on until there is a file `go`: it cannot be faster than its fault.
"""

import os
import signal
import sys
import time
from pathlib import Path

BLOCK = 100 << 20
WORK, LONGER, LONGEST = 0.05, 0.2, 3.0  # seconds, of processor time the first
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
    if (RUN / "go").exists():
        return
    if "torch" in sys.modules and (RUN / "checkpoints").is_dir():
        pause = min(pause + LONGER, LONGEST)
        time.sleep(pause)
    signal.setitimer(signal.ITIMER_PROF, WORK)


signal.signal(signal.SIGURG, raise_error)
signal.signal(signal.SIGWINCH, eat)
if os.environ.get("CLUSTERCTL_ATTEMPT") == "0" and "clusterctl.runs" in sys.orig_argv:
    signal.signal(signal.SIGPROF, dawdle)
    signal.siginterrupt(signal.SIGPROF, False)
    signal.setitimer(signal.ITIMER_PROF, WORK)

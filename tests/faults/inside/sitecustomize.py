"""On the PYTHONPATH of a run that is to fail from within: a signal makes its Python raise, or eat memory.

Both signals are ignored by default, so that one which comes before this is in place kills nobody.
"""

import signal

BLOCK = 100 << 20


def raise_error(*_: object) -> None:
    raise ValueError("no such layer: 7")


def eat(*_: object) -> None:
    eaten = []
    while True:
        eaten.append(bytearray(b"x") * BLOCK)


signal.signal(signal.SIGURG, raise_error)
signal.signal(signal.SIGWINCH, eat)

"""A link between two machines, as ssh's ProxyCommand: it can be slow, break after a number of bytes, or stop.

`python relay.py PORT FOLDER`. A file `delay` in FOLDER contains the latency in seconds. A file `cut` contains a
direction and a number of bytes, such as `up 4096`: after that many more bytes the link breaks, once. While a file
`silent` exists, nothing passes. `turns` counts the round trips, `passed` the bytes up to the last one.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import socket
import sys
import time
from collections import deque
from pathlib import Path


def read(path: Path) -> str:
    with contextlib.suppress(FileNotFoundError):
        return path.read_text()
    return ""


class Link:
    def __init__(self, port: int, folder: Path) -> None:
        self.folder = folder
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.ways = {"up": (0, self.socket.fileno()), "down": (self.socket.fileno(), 1)}
        self.under_way: deque[tuple[float, str, bytes]] = deque()
        self.budget: dict[str, int] = {}
        self.turns, self.last = 0, ""
        self.passed = {"up": 0, "down": 0}  # bytes

    def run(self) -> None:
        selector = selectors.DefaultSelector()
        for way, (source, _) in self.ways.items():
            selector.register(source, selectors.EVENT_READ, way)
        while True:
            wait = max(self.under_way[0][0] - time.monotonic(), 0) if self.under_way else 0.05
            for key, _ in selector.select(min(wait, 0.05)):
                data = os.read(key.fd, 2**15)
                if not data:
                    return
                delay = float(read(self.folder / "delay") or 0)
                self.under_way.append((time.monotonic() + delay, key.data, data))
            while self.under_way and self.under_way[0][0] <= time.monotonic():
                _, way, data = self.under_way.popleft()
                self.pass_on(way, data)

    def pass_on(self, way: str, data: bytes) -> None:
        while (self.folder / "silent").exists():
            time.sleep(0.05)
        if rule := read(self.folder / "cut"):
            direction, amount = rule.split()
            self.budget[direction] = int(amount)
            (self.folder / "cut").rename(self.folder / "cut-begun")
        if way in self.budget:
            data = data[: self.budget[way]]
            self.budget[way] -= len(data)
        self.passed[way] += len(data)
        target = self.ways[way][1]
        view = memoryview(data)
        while view:
            view = view[os.write(target, view) :]
        if self.budget.get(way, 1) <= 0:
            (self.folder / "cut-begun").rename(self.folder / "cut-done")
            sys.exit(1)
        if way == "down" and self.last == "up":
            self.turns += 1
            (self.folder / "turns").write_text(str(self.turns))
            (self.folder / "passed").write_text(json.dumps(self.passed))
        self.last = way


if __name__ == "__main__":
    Link(int(sys.argv[1]), Path(sys.argv[2])).run()

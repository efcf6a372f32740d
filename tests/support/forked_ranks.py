"""Runs the Python text of each rank in a fork of one interpreter that has already imported torch.

This saves every rank an import of 2 s; the tests are about what ranks do together, not about how they start. It reads
`{"program": text, "imports": [...], "ranks": [{"environment": {...}, "output": path, "errors": path}, ...]}` from
stdin, and prints the exit code of each rank.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import warnings
from typing import Any


def main() -> None:
    request = json.load(sys.stdin)
    for name in request["imports"]:
        importlib.import_module(name)
    children = []
    for rank in request["ranks"]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python 3.12 and later warn about a library's sleeping threads
            child = os.fork()
        if child == 0:
            become(rank)
            exec(compile(request["program"], "<string>", "exec"), vars(sys.modules["__main__"]))
            return
        children.append(child)
    print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]))


def become(rank: dict[str, Any]) -> None:
    os.environ.clear()
    os.environ.update(rank["environment"])
    for stream, path in (1, rank["output"]), (2, rank["errors"]):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(file, stream)
        os.close(file)


if __name__ == "__main__":
    main()

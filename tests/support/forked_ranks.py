"""Runs the Python text of each rank in a fork of one interpreter that has already imported torch.

This saves every rank an import of 2 s; the tests are about what ranks do together, not about how they start. The
arguments are the modules to import. Each line of stdin is a request,
`{"program": text, "ranks": [{"environment": {...}, "output": path, "errors": path}, ...]}`, and is answered with one,
the exit code of each rank.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any


def main() -> None:
    sys.path.append(str(Path(__file__).parents[1]))  # so that programs may import `support`
    for name in sys.argv[1:]:
        importlib.import_module(name)
    gc.freeze()  # or each fork copies and examines everything imported when it ends
    for line in sys.stdin:
        request = json.loads(line)
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
        print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]), flush=True)


def become(rank: dict[str, Any]) -> None:
    os.environ.clear()
    os.environ.update(rank["environment"])
    sys.stdin.close()
    for stream, path in (0, os.devnull), (1, rank["output"]), (2, rank["errors"]):
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        if file != stream:
            os.dup2(file, stream)
            os.close(file)


if __name__ == "__main__":
    main()

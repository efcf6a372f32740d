"""Calls one function with arguments from JSON, in each task of a run: the program of `clusterctl.submit_function`.

python -m clusterctl.call MODULE:FUNCTION '{"args": [0.1], "kwargs": {"epochs": 3}}'
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

from clusterctl.shared.errors import ClusterctlError, TaskError
from clusterctl.shared.record.files import write_text
from clusterctl.shared.record.layout import RunDir
from clusterctl.shared.record.place import Place


def main() -> None:
    """Call the function; rank 0 writes its result to the run, or prints it outside of one."""
    name, given = sys.argv[1], json.loads(sys.argv[2])
    module, _, attribute = name.partition(":")
    function: Any = functools.reduce(getattr, attribute.split("."), importlib.import_module(module))
    result = function(*given["args"], **given["kwargs"])
    if Place.from_environment().rank:
        return
    try:
        text = json.dumps(result)
    except (TypeError, ValueError, RecursionError) as error:
        message = f"the result of {name} cannot be written as JSON: {error}"
        raise TaskError(message, "return numbers, texts, lists and dicts; write other data to a file") from error
    if folder := os.environ.get("CLUSTERCTL_RUN_DIR"):
        write_text(RunDir(Path(folder)).result_json, text)
    else:
        print(text)


if __name__ == "__main__":
    try:
        main()
    except ClusterctlError as error:
        print(error.text, file=sys.stderr)
        raise SystemExit(error.exit_code) from None

"""python -m clusterctl.workloads.generated reddit|taobao SCALE SEED ROOT: what `clusterctl data generate` starts."""

from __future__ import annotations

import shutil
import sys
import uuid
from pathlib import Path

from clusterctl.errors import ClusterctlError, UsageError
from clusterctl.workloads.data_progress import Bar
from clusterctl.workloads.generated import reddit, taobao

_WRITERS = {"reddit": (reddit.write, "accuracy"), "taobao": (taobao.write, "AUC")}


def main(name: str, scale: float, seed: int, root: Path) -> str:
    """Write the data set into `root`, whole or not at all; a line about it. Raises UsageError where one is there."""
    write, score = _WRITERS[name]
    if (root / "raw").exists():
        raise UsageError(f"there is a data set already: {root}/raw", "name another --root, or remove it")
    building = root.with_name(f".{root.name}.{uuid.uuid4().hex}")
    root.parent.mkdir(parents=True, exist_ok=True)
    bar = Bar(f"generating {name}", "lines" if name == "taobao" else "edges")
    try:
        building.mkdir()
        best = write(building, scale, seed, bar.show)
        bar.end()
        root.mkdir(exist_ok=True)
        for part in sorted(building.iterdir(), reverse=True):  # `raw` last: with it the set is there
            part.replace(root / part.name)
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return f"{root}: the best possible {score} is {best:.4f}"


if __name__ == "__main__":
    name, scale, seed, root = sys.argv[1:]
    try:
        print(main(name, float(scale), int(seed), Path(root).absolute()))
    except ClusterctlError as error:
        print(error.text, file=sys.stderr)
        raise SystemExit(error.exit_code) from None
    except OSError as error:
        print(f"error: cannot write {error.filename or root}: {error.strerror}\nhint: df -h", file=sys.stderr)
        raise SystemExit(1) from None

"""python -m clusterctl.workloads.generated reddit|taobao SCALE SEED ROOT: what `clusterctl data generate` starts."""

from __future__ import annotations

import shutil
import sys
import uuid
from pathlib import Path

from clusterctl.errors import UsageError
from clusterctl.workloads.data_command import Bar, run


def main(name: str, scale: float, seed: int, root: Path) -> str:
    """Write the data set into `root`, whole or not at all; a line about it. Raises UsageError where one is there."""
    from clusterctl.workloads.generated import reddit_like, taobao_like  # they need torch, which may be missing

    generators = {
        "reddit": (reddit_like.write, "accuracy", "edges"),
        "taobao": (taobao_like.write, "AUC", "events"),
    }
    write, score, unit = generators[name]
    if (root / "raw").exists():
        raise UsageError(f"there is a data set already: {root}/raw", "name another --root, or remove it")
    root.mkdir(parents=True, exist_ok=True)
    building = root / f".{uuid.uuid4().hex}"
    bar = Bar(f"generating {name}", unit)
    try:
        building.mkdir()
        best = write(building, scale, seed, bar.show)
        for part in sorted(building.iterdir(), reverse=True):  # `raw` last: with it the set is there
            part.replace(root / part.name)
    finally:
        bar.end()
        shutil.rmtree(building, ignore_errors=True)
    return f"{root}: the best possible {score} is {best:.4f}"


if __name__ == "__main__":
    name, scale, seed, root = sys.argv[1:]
    run(lambda: main(name, float(scale), int(seed), Path(root).absolute()))

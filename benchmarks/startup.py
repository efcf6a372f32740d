"""How long a person waits for the command line: `clusterctl --help` against importing click alone.

python benchmarks/startup.py
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from side_by_side import compare, timed


def run(*words: str) -> None:
    subprocess.run(words, stdout=subprocess.DEVNULL, check=True)


def main() -> None:
    clusterctl = str(Path(sys.executable).with_name("clusterctl"))
    compare(
        "Start-up",
        ("clusterctl --help", timed(lambda: run(clusterctl, "--help"))),
        ('python -c "import click"', timed(lambda: run(sys.executable, "-c", "import click"))),
        bound=1.5,
        runs=25,
    )


if __name__ == "__main__":
    main()

"""The start-up time of the command line: `clusterctl --help` and pressing Tab, compared with only importing click.

python benchmarks/startup.py
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from side_by_side import arguments, compare, timed


def run(*words: str, **variables: str) -> None:
    subprocess.run(words, stdout=subprocess.DEVNULL, env={**os.environ, **variables}, check=True)


def main() -> None:
    arguments(__doc__).parse_args()
    clusterctl = str(Path(sys.executable).with_name("clusterctl"))
    rival = 'python -c "import click"', timed(lambda: run(sys.executable, "-c", "import click"))
    compare("Start-up", ("clusterctl --help", timed(lambda: run(clusterctl, "--help"))), rival, bound=1.5, runs=25)
    line = "clusterctl submit cora --set train.sch"
    press = timed(lambda: run(clusterctl, COMP_LINE=line, _CLUSTERCTL_COMPLETE="bash"))
    compare("A press of Tab", (line, press), rival, bound=1.2, runs=25)


if __name__ == "__main__":
    main()

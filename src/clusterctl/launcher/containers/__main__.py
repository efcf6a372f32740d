"""Started by path, in front of a task's command: `python -I -S .../clusterctl/launcher/containers FLAGS -- COMMAND`.

Python puts this folder first on its path; it is replaced by the one that holds the clusterctl package.
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).absolute().parents[3])

    from clusterctl.launcher.containers.enter import main

    main(sys.argv[1:])

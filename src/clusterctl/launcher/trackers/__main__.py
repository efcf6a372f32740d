"""Started by path on the first node of a run: `python -E .../clusterctl/launcher/trackers RUN_DIR`.

Python puts this folder first on its path, where the package's parent folder is needed.
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).absolute().parents[3])

    from clusterctl.launcher.trackers.mirror import main

    main(Path(sys.argv[1]))

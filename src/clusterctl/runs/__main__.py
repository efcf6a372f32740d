"""One task of a run: `python -m clusterctl.runs RUN_DIR`, as the batch script has srun start it."""

import sys

from clusterctl.runs.entry import Entry

if __name__ == "__main__":
    Entry(sys.argv[1])()

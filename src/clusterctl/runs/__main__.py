"""One task of a run: `python -m clusterctl.runs RUN_DIR`, started by srun in the batch script."""

import sys

from clusterctl.runs.entry import Entry

if __name__ == "__main__":
    Entry(sys.argv[1])()

"""The notebook in docs/examples, executed in a kernel: what each cell shows, and what it looks like."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from support.mistake import Desk, check_plain

NOTEBOOK = Path(__file__).resolve().parents[2] / "docs" / "examples" / "first_look.ipynb"


def shown(cell: Any, kind: str) -> list[str]:
    """The outputs of a cell as `kind`."""
    data = [one["data"] for one in cell.outputs if "data" in one]
    return ["".join(one[kind]) for one in data if kind in one]


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::RuntimeWarning")  # of the kernel's packages
def test_every_cell_of_the_example_shows_what_it_promises(desk: Desk) -> None:
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    desk.set(CLUSTERCTL_CLUSTER=None, PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbclient.NotebookClient(notebook, timeout=1200, kernel_name="python3").execute()
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    submitted, waited, metrics, logs, why, differs, runs, report, error = cells
    for cell in cells:
        assert not [one for one in cell.outputs if one.output_type == "error"]
        assert not [one for one in cell.outputs if one.get("name") == "stderr"]
        for html in shown(cell, "text/html"):
            check_plain(html)
    assert [len(shown(cell, "text/html")) for cell in cells] == [1, 2, 1, 1, 1, 2, 1, 0, 0]
    assert re.search(r"cora-\S+", shown(submitted, "text/html")[0])
    progress, status = shown(waited, "text/html")  # the line was updated in place
    assert "finished  epoch 3/3" in progress
    assert "finished" in status
    assert "val_accuracy" in shown(metrics, "text/html")[0]
    assert "epoch 3/3" in shown(logs, "text/html")[0]
    assert "the run finished" in shown(why, "text/html")[0]
    assert "train.lr" in shown(differs, "text/html")[1]
    assert shown(runs, "text/html")[0].count("cora-") == 2
    assert shown(report, "text/plain") == ["PosixPath('two-runs.html')"]
    assert "What differs" in (desk.project / "two-runs.html").read_text()
    assert "hint: " in error.outputs[0]["text"]

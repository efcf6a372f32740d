from __future__ import annotations

from pathlib import Path

import pytest
from support.ranks import run_program

from clusterctl.shared.record.layout import RunDir

PROGRAM = """
import ctypes, torch
from pathlib import Path
from clusterctl.shared.node.events import Context
from clusterctl.shared.record.layout import current_attempt
from clusterctl.engine.task.task import joined

def megabytes():
    ctypes.CDLL(None).malloc_trim(0)
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Private_Dirty:")) / 1024

context = Context({"name": "t", "workload": "reddit"}, attempt=current_attempt())
with joined(context), torch.autocast("cpu", torch.bfloat16):
    weights = torch.zeros(64, 64, requires_grad=True)
    for rows in range(1000, 1600):
        if rows == 1030:
            before = megabytes()
        torch.nn.functional.linear(torch.zeros(rows, 64), weights).sum().backward()
    print(megabytes() - before)
"""


@pytest.mark.long
def test_changing_batch_sizes_do_not_fill_memory_with_compiled_matmuls(tmp_path: Path) -> None:
    (grown,) = run_program(PROGRAM, RunDir(tmp_path).attempt(0), [1])  # 500 MB if every size is cached
    assert float(grown.splitlines()[-1]) < 50

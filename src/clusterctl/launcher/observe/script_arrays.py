"""Arrays of batch scripts of the user's own: elements are runs, whose directories are made when they start.

The array has a directory like a run's, with all that its elements share (`submission.user_script`). The record of an
element without a directory is the array's.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from clusterctl.launcher.observe.run_names import is_run_id
from clusterctl.launcher.slurm.queue import is_among
from clusterctl.shared.node.script_start import make_element
from clusterctl.shared.record.fields import read_fields
from clusterctl.shared.record.files import exists
from clusterctl.shared.record.layout import RunDir, SweepDir
from clusterctl.shared.record.plain_text import numbers_in

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clusterctl.shared.record.layout import ArrayDir


def array_of(run: RunDir) -> RunDir | None:
    """The directory of the array, if `run` is an element of one and has no directory yet; None for any other run."""
    sweep, _, index = run.id.rpartition(".")
    if not is_run_id(sweep) or not is_run_id(run.id) or exists(run.path):
        return None
    array = RunDir(SweepDir.of(run.path.parent, sweep).array(0).path)
    indices = read_fields(array.run_json).text("array")
    if not indices or not is_among(int(index), indices) or exists(array.begun / index):
        return None
    return array


def make_directory(run: RunDir, job_id: str | None) -> None:
    """Make the directory of an element that has none yet; does nothing for any other run. Raises OSError."""
    if job_id and (array := array_of(run)):
        with suppress(FileExistsError):  # it has just started
            make_element(array.path, run.id.rpartition(".")[2], job_id)


def indices_of(array: ArrayDir) -> Sequence[int]:
    """The indices of the elements of an array, be it of a sweep or of a batch script."""
    if runs := read_fields(array.array_json).texts("runs"):
        return range(len(runs))
    with suppress(ValueError):
        return numbers_in(read_fields(RunDir(array.path).run_json).text("array"))
    return ()

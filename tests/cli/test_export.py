"""`export`: the archive with its report."""

from __future__ import annotations

import tarfile
from collections.abc import Callable

from support.mistake import Desk

from clusterctl.shared.record.layout import RunDir


def test_the_archive_is_in_the_current_folder_and_has_a_report(desk: Desk, fabricate: Callable[..., RunDir]) -> None:
    run = fabricate(files={"finished.json": {"time": 5}, "weights.pt": "w", "script.sh": "#!/bin/bash\n"})
    assert desk.type("export cora") == (0, f"{run.id}.tar.gz\n", "")
    with tarfile.open(desk.project / f"{run.id}.tar.gz") as archive:
        names = [name.removeprefix(f"{run.id}/") for name in archive.getnames()]
        report = archive.extractfile(f"{run.id}/report.html")
        assert report is not None
        assert report.read().startswith(b"<!doctype html>")
    made, kept = ["README.txt", "metrics.csv", "report.html", "status.json"], ["finished.json", "run.json", "script.sh"]
    assert names == [*made, *kept, "weights.pt"]
    assert desk.type("export cora --no-weights --output b.tar.gz") == (0, "b.tar.gz\n", "")
    with tarfile.open(desk.project / "b.tar.gz") as archive:
        assert f"{run.id}/weights.pt" not in archive.getnames()
    assert desk.type("export cora --no-weights --output b.tar.gz --force") == (0, "b.tar.gz\n", "")

"""What the kind of a cluster means, and which code compares it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import clusterctl
from clusterctl.shared.spec import Cluster

SOURCE = Path(clusterctl.__file__).parent


@pytest.mark.parametrize(
    ("kind", "is_slurm", "nodes_are_here", "runtime"),
    [("slurm", True, False, "pyxis"), ("sandbox", True, True, "builtin"), ("emulator", False, True, "builtin")],
)
def test_what_each_kind_of_cluster_implies(kind: str, is_slurm: bool, nodes_are_here: bool, runtime: str) -> None:
    cluster = Cluster(name="c", kind=kind)
    assert (cluster.is_slurm, cluster.nodes_are_here, cluster.runtime) == (is_slurm, nodes_are_here, runtime)


def test_only_the_slurm_client_distinguishes_kinds() -> None:
    compared = re.compile(r"""\.kind (?:[!=]=|in|not in) ?\(?["'](?:slurm|emulator|sandbox)""")
    comparing = {str(path.relative_to(SOURCE)) for path in SOURCE.rglob("*.py") if compared.search(path.read_text())}
    assert comparing == {"shared/spec/cluster.py", "launcher/slurm/client.py"}

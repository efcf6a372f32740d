"""Querying a site for its first cluster file."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from clusterctl.launcher.api.init import ask_site, parse_associations
from clusterctl.launcher.slurm import Slurm
from clusterctl.shared.errors import SlurmError

NODES = (Path(__file__).parent / "fixtures" / "sinfo-25.05.txt").read_text()
ANSWERS = {
    "sinfo": NODES,
    "scontrol": "AccountingStorageType  = accounting_storage/slurmdbd\nClusterName             = alpha\n",
    "sacctmgr": "physics|normal,high\nphysics|normal\nchem|\n|normal\n",
    "srun": "      --container-image=[USER@][REGISTRY#]IMAGE[:TAG]|PATH\n",
}


def slurm(asked: list[str], **silent: str) -> Slurm:
    def answer(argv: Sequence[str], environment: object) -> subprocess.CompletedProcess[str]:
        asked.append(argv[0])
        return subprocess.CompletedProcess([], argv[0] in silent, ANSWERS[argv[0]], silent.get(argv[0], ""))

    return Slurm(lambda command: command, {}, answer)


def test_a_site_is_probed_with_few_commands() -> None:
    asked: list[str] = []
    site = ask_site(slurm(asked))
    assert asked == ["sinfo", "scontrol", "sacctmgr", "srun", "scontrol"]
    assert (site.name, site.accounts, site.qos, site.has_pyxis) == (
        "alpha",
        ("physics", "chem"),
        ("normal", "high"),
        True,
    )
    assert list(site.inventory.partitions) == ["gpu", "cpu", "mig"]
    assert site.unknown == ()


def test_missing_answers_are_reported_without_an_error() -> None:
    site = ask_site(slurm([], scontrol="no", sacctmgr="no database", srun="no"))
    assert (site.name, site.accounts, site.qos, site.has_pyxis) == ("", (), (), None)
    assert [sentence.split(":")[0] for sentence in site.unknown] == [
        "the cluster's name",
        "your accounts and QOS",
        "whether srun has pyxis",
        "what happens to preempted jobs",
    ]


@pytest.mark.parametrize("nodes", ["", "nothing of sinfo's\n"])
def test_a_site_without_partitions_is_an_error(nodes: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ANSWERS, "sinfo", nodes)
    with pytest.raises(SlurmError, match="no partition"):
        ask_site(slurm([]))


def test_unrelated_lines_of_sacctmgr_are_skipped() -> None:
    assert parse_associations("error\n\n||\na|b,c|d\n") == (("a",), ("b", "c"))

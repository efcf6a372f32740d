"""The first cluster file and job: what they contain for which site."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from clusterctl.launcher.api.init import ClusterChoices, Site, cluster_text, first_job, likely_partition, toml_text
from clusterctl.launcher.slurm.nodes import parse_nodes
from clusterctl.shared.spec import Cluster, from_record

NODES = (Path(__file__).parents[1] / "slurm" / "fixtures" / "sinfo-25.05.txt").read_text()
SITE = Site(parse_nodes(NODES, 0.0), "alpha", ("physics", "chem"), ("normal",), has_pyxis=True)
CHOSEN = ClusterChoices("alpha", "gpu", "/scratch/me/runs")


def cluster(site: Site = SITE, chosen: ClusterChoices = CHOSEN, **variables: str) -> Cluster:
    text = cluster_text(site, chosen, variables)
    return from_record(Cluster, {"name": chosen.name, **tomllib.loads(text)}, parse=True)


def test_the_cluster_file_has_a_reason_for_each_value() -> None:
    found = cluster()
    assert (found.kind, found.partition, found.runs, found.gpus_per_node) == ("slurm", "gpu", "/scratch/me/runs", 8)
    assert (found.account, found.qos, found.slurm_conf, found.container_runtime) == (None, None, None, "pyxis")
    text = cluster_text(SITE, CHOSEN, {}, "lustre")
    assert 'partition = "gpu" # gpu: 3 nodes, 8 h100 each, up to 2d' in text
    assert "# another partition: cpu: 2 nodes, no GPUs, no time limit" in text
    assert '# account = "..." # yours: physics, chem' in text
    assert "lustre" in text


def test_choices_and_slurm_conf_are_written() -> None:
    found = cluster(chosen=replace(CHOSEN, account="chem", qos="normal"), SLURM_CONF="/etc/other.conf")
    assert (found.account, found.qos, found.slurm_conf) == ("chem", "normal", "/etc/other.conf")


def test_the_container_runtime_is_builtin_without_pyxis_and_unset_if_unknown() -> None:
    assert cluster(replace(SITE, has_pyxis=False)).container_runtime == "builtin"
    assert cluster(replace(SITE, has_pyxis=None)).container_runtime is None


def test_gpus_per_node_of_cpu_and_mixed_partitions() -> None:
    assert cluster(chosen=replace(CHOSEN, partition="cpu")).gpus_per_node == 0
    assert str(cluster(chosen=replace(CHOSEN, partition="mig")).gpus_per_node) in ("1g.10gb:14", "3g.40gb:2")


def test_the_likely_partition_is_the_default_one_unless_only_others_have_gpus() -> None:
    assert likely_partition(SITE.inventory) == "gpu"
    swapped = NODES.replace("gpu*", "gpu").replace("\x1fcpu\x1f", "\x1fcpu*\x1f")
    assert likely_partition(parse_nodes(swapped, 0.0)) == "gpu"
    without = "".join(line for line in swapped.splitlines(keepends=True) if line.startswith("cpu"))
    assert likely_partition(parse_nodes(without, 0.0)) == "cpu"


def test_the_first_job_fits_the_partition() -> None:
    assert first_job(SITE, CHOSEN)["resources"] == {"nodes": 2, "time": "10m"}
    assert first_job(SITE, replace(CHOSEN, partition="mig"))["resources"]["nodes"] == 1
    short = replace(SITE, inventory=parse_nodes(NODES.replace("2-00:00:00", "0:05:00"), 0.0))
    assert first_job(short, CHOSEN)["resources"]["time"] == "5m"


WORDS = st.text(st.characters(exclude_categories=["Cs"]))


@given(st.dictionaries(st.sampled_from("abc"), WORDS | st.integers(-9, 9) | st.lists(WORDS)), WORDS)
def test_toml_text_can_be_read_back(values: dict[str, object], comment: str) -> None:
    nested = {**values, "table": {**values, "inner": values}} if values else {}
    assert tomllib.loads(toml_text(nested, [comment])) == nested

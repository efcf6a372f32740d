"""The JSON schemas for editors accept exactly what clusterctl accepts."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from support.json_schema import SCHEMAS, schema, violations

from clusterctl.shared.errors import ClusterctlError
from clusterctl.shared.spec import PYG_MODELS, WORKLOADS, Cluster, Job, from_record
from clusterctl.shared.spec.keys import choices_of, cluster_schema, job_schema

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = [*ROOT.glob("jobs/*.toml"), *ROOT.glob("cluster/*.toml")]


TIMES = ("90", '"90"', '"4h"', '"20 m"', '"1-00:00:00"', '"2-3"', '"1:30:00"')


def complaints(text: str, workload: str = "reddit") -> list[str]:
    """Violations of the schema by a job file with `text`."""
    return violations(tomllib.loads(f'workload = "{workload}"\n{text}'), job_schema())


def accepted(text: str, workload: str = "reddit") -> bool:
    """Whether clusterctl accepts a job file with `text`."""
    try:
        from_record(Job, tomllib.loads(f'name = "x"\nworkload = "{workload}"\n{text}'), parse=True)
    except ClusterctlError:
        return False
    return True


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_a_shipped_file_names_its_schema_and_conforms_to_it(path: Path) -> None:
    named = re.match(r"#:schema (\S+)\n", path.read_text())
    assert named
    kind = "job" if path.parent.name == "jobs" else "cluster"
    assert (path.parent / named[1]).resolve() == (SCHEMAS / f"{kind}.json").resolve()
    assert violations(tomllib.loads(path.read_text()), schema(kind)) == []


@pytest.mark.parametrize(
    "text",
    [
        *(f"[resources]\ntime = {time}" for time in TIMES),
        "[resources]\nwarning = 0",
        "[resources]\ngpus_per_node = 4",
        "[resources]\nrequeue = false",
        '[resources]\nrequeue = "expedite"',
        '[resources]\ngpus_per_node = "a100-sxm4.80gb:4"',
        "[resources]\nnice = -5",
        '[resources]\nmemory = "64G"\nsbatch = { hint = "nomultithread" }',
        '[container]\nmounts = ["/a:/b:ro"]\ncode = "image"',
        '[env]\nNCCL_DEBUG = "WARN"',
        "[train]\nfan_out = [4, -1]\nlr = 1\nprofile = [10, 20]",
        "[train]\nprofile = []\ndropout = 0",
        "[watchdog]\nfloor = 1\nfactor = 1.5",
    ],
)
def test_the_schema_accepts_what_clusterctl_accepts(text: str) -> None:
    assert accepted(text)
    assert complaints(text) == []


@pytest.mark.parametrize(
    "text",
    [
        "epochs = 3",
        '[resources]\ntime = "soon"',
        '[resources]\ntime = "1:2:3:4"',
        "[resources]\ntime = 0",
        "[resources]\ntime = 1.5",
        "[resources]\nnodes = 0",
        "[resources]\nnodes = true",
        "[resources]\nnodes = 4294967296",
        '[resources]\ngpus_per_node = "4"',
        '[resources]\nrequeue = "always"',
        '[resources]\ngpus_per_node = "a100"',
        '[resources]\ngpus_per_node = "a,b:1"',
        "[resources]\ngpus_per_node = -1",
        '[resources]\npartition = ""',
        '[resources]\nsbatch = { Hint = "x" }',
        "resources = 3",
        '[container]\ncode = "mount"',
        '[container]\nimage = "two words"',
        "[container]\nmounts = [3]",
        '[env]\n"A-B" = "x"',
        "[env]\nA = 1",
        "[train]\nepoch = 3",
        "[train]\nfan_out = []",
        "[train]\nfan_out = [-2]",
        "[train]\nprofile = [0, 20]",
        "[train]\nprofile = [1, 2, 3]",
        "[train]\nlr = 0",
        "[train]\ndropout = 1",
        "[train]\nbatch_size = 128\nglobal_batch_size = 512",
        "[watchdog]\nfloor = 0",
    ],
)
def test_the_schema_rejects_what_clusterctl_rejects(text: str) -> None:
    assert not accepted(text)
    assert complaints(text) != []


@pytest.mark.parametrize(
    ("workload", "text", "right"),
    [
        ("taobao", "[train]\ntogether = 2", True),
        ("reddit", "[train]\ntogether = 2", False),
        ("taobao", "[train]\nfan_out = [8, 4, 2]", False),
        ("deep-sage", "[train]\nfan_out = [8, 4, 2]", True),
        ("graph-classification", '[train]\nmodel = "gin"\nfolds = 10', True),
        ("graph-classification", "[train]\nfolds = 11", False),
        ("graph-classification", '[train]\nmodel = "sage"', False),
        ("command", "[train]\nlr = 0.1", False),
        ("command", 'argv = ["true"]\n[train]', True),
        ("nothing", "", False),
    ],
)
def test_the_workload_determines_the_keys_of_train(workload: str, text: str, right: bool) -> None:
    assert (complaints(text, workload) == []) is right
    assert accepted(text, workload) is right


def test_name_is_optional_but_a_workload_or_roles_are_required() -> None:
    assert violations({}, cluster_schema()) == []
    (problem,) = violations({}, job_schema())
    assert "workload" in problem
    assert violations({"role": [{"name": "server", "program": ["true"], "nodes": 2}]}, job_schema()) == []
    assert violations({"role": [{"name": "server"}]}, job_schema()) != []
    assert violations({"partitoin": "gpu"}, cluster_schema()) == ["$: unknown partitoin"]


def test_every_key_has_a_description_for_completion() -> None:
    """Editors complete from `properties`, not from `then`."""
    properties = job_schema()["properties"]
    offered = properties["train"]["properties"]
    for workload in WORKLOADS.values():
        for name in workload.train.__dataclass_fields__:
            assert offered[name]["description"]
    assert set(choices_of(offered["model"])) == {"sage", "gcn", "gat", "rgat", "gin", "plain", *PYG_MODELS}

    def descriptions(table: dict[str, Any]) -> None:
        for name, entry in table.items():
            assert entry["description"], name
            descriptions(entry.get("properties", {}))

    descriptions(properties)
    descriptions(cluster_schema()["properties"])
    assert {"name", *Cluster.__dataclass_fields__} == set(cluster_schema()["properties"])

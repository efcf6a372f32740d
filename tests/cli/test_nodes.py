"""`nodes`: from the command line to the output and the queries to Slurm."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.json_schema import schema, violations
from support.mistake import SLURM, USAGE, Desk, Mistake, rows

CAPTURED = Path(__file__).parents[1] / "slurm" / "fixtures" / "sinfo-22.05.8.txt"
JOB = 'workload = "synthetic"\n[resources]\nnodes = 2\ntime = "1h"\n'


def answer_as_captured(desk: Desk, sbatch: str = "exit 1") -> None:
    desk.use_slurm(sinfo=f"cat {CAPTURED}", sbatch=sbatch)
    desk.write("job.toml", JOB)


def test_nodes_queries_slurm_once(desk: Desk) -> None:
    answer_as_captured(desk)
    code, out, err = desk.type("nodes")
    assert (code, err) == (0, "")
    assert "2 nodes x 2 GPUs" in out
    assert "disk | bad [x]" in out
    assert (desk.asked("sinfo"), desk.asked("squeue"), desk.asked("scontrol")) == (1, 0, 0)


def test_json_lists_every_node_and_a_schema_version(desk: Desk) -> None:
    answer_as_captured(desk)
    code, out, _ = desk.type("nodes -o json")
    record = json.loads(out)
    assert (code, record["cluster"]) == (0, "site")
    assert violations(record, schema("nodes")) == []
    assert [node["name"] for node in record["nodes"]] == ["node1", "node2", "node3", "node4"]
    assert record["partitions"][0]["largest_now"] == {"nodes": 2, "cpus_per_node": 14, "gpus_per_node": 2}
    assert record["partitions"][0]["gpus"] == {"gpu": {"free": 5, "total": 16}}


def test_for_shows_slurms_estimate_beside_our_own(desk: Desk) -> None:
    estimate = "Job 7 to start at $(($(date +%s) + 600)) using 2 processors on nodes node[1-2] in partition main"
    answer_as_captured(desk, f'echo "sbatch: {estimate}" >&2')
    code, out, err = desk.type("nodes --for ./job.toml")
    assert (code, err) == (0, "")
    assert "estimated start: in " in out
    assert "in partition main" in out
    record = json.loads(desk.type("nodes --for ./job.toml -o json")[1])
    assert (record["partitions"][0]["fits_now"], record["partitions"][0]["nodes_with_room"]) == (True, 3)
    assert (record["estimate"]["nodes"], record["refused"]) == ("node[1-2]", None)
    assert violations(record, schema("nodes-for")) == []
    assert desk.run_directories() == []


def test_a_job_that_slurm_would_reject_is_shown_with_the_reason(desk: Desk) -> None:
    answer_as_captured(desk, 'echo "allocation failure: Invalid qos specification" >&2; exit 1')
    code, out, _ = desk.type("nodes --for ./job.toml")
    assert code == 0
    assert "Slurm would reject it: allocation failure: Invalid qos" in out
    assert "hint: set `qos`" in out


@pytest.mark.parametrize("job", ["reddit", "cora", "cora --set resources.nodes=9"])
def test_the_verdict_on_a_job_ends_with_one_newline(desk: Desk, job: str) -> None:
    code, out, err = desk.type(f"nodes --for {job}")
    assert (code, err) == (0, "")
    assert out.endswith("\n")
    assert not out.endswith("\n\n")


def test_a_job_that_never_fits_gets_a_command_that_does(desk: Desk) -> None:
    out = desk.type("nodes --for cora --set resources.nodes=9")[1]
    assert "Slurm would reject it: cora requests 9 nodes; main partition has 4\n" in out
    assert out.endswith("hint: clusterctl submit cora --nodes 4\n")


@rows(
    Mistake(
        what="a change without a job",
        typed="nodes --set resources.nodes=2",
        code=USAGE,
        expected="--set needs --for",
        hint="--for JOB",
    ),
    Mistake(
        what="a controller that is down",
        typed="nodes",
        code=SLURM,
        expected="contact slurm controller",
        hint="scontrol ping",
        prepare=lambda desk: desk.use_slurm(
            sinfo='echo "slurm_load_partitions: Unable to contact slurm controller (connect failure)" >&2; exit 1'
        ),
    ),
)
def test_mistakes_are_explained(mistake: Mistake, desk: Desk) -> None:
    mistake.make(desk)

"""Which of several clusters gets a job: the answers, their order, and clusters that do not answer."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest
from support.mistake import SLURM, USAGE, Desk

import clusterctl
from clusterctl.launcher.api import several_clusters
from clusterctl.launcher.api.several_clusters import Offer, Offers, names_in, offers
from clusterctl.launcher.config.shown import ProgressListener
from clusterctl.launcher.slurm.nodes import Inventory, Partition

HOUR = 3600.0


def chosen(*found: Offer) -> str:
    return Offers(found).best.cluster


def test_the_earliest_start_wins_and_near_starts_count_as_the_same() -> None:
    assert chosen(Offer("a", 2 * HOUR, room=9), Offer("b", HOUR)) == "b"
    assert chosen(Offer("a", 30.0, room=1), Offer("b", 0.0, room=1)) == "a", "the one named first"
    assert chosen(Offer("a", 0.0, room=1), Offer("b", 30.0, room=7)) == "b", "more free nodes"


def test_without_an_estimate_free_nodes_count_as_soon_but_not_as_now() -> None:
    unknown = Offer("a", None, room=4, wanted=4)
    assert chosen(unknown, Offer("b", HOUR)) == "a"
    assert chosen(unknown, Offer("b", 0.0)) == "b"
    assert chosen(Offer("a", None, room=3, wanted=4), Offer("b", 9 * HOUR)) == "b"


def test_a_cluster_that_refuses_takes_no_part_and_is_named_if_all_do() -> None:
    refused = Offer("a", problem="Slurm refuses the job: Invalid qos")
    assert chosen(refused, Offer("b", 9 * HOUR)) == "b"
    with pytest.raises(clusterctl.SlurmError) as caught:
        _ = Offers([refused, Offer("b", problem="no answer within 3 s, left out")]).best
    assert "a: Slurm refuses the job: Invalid qos\nb: no answer within 3 s" in caught.value.message
    assert caught.value.hint == 'to see what it needs, name only one: `cluster="a"`'


def test_names_count_once() -> None:
    assert names_in(" a,b,,a ") == ["a", "b"]
    with pytest.raises(clusterctl.UsageError):
        names_in(",")


def test_a_silent_cluster_is_left_out_after_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()

    def offer(job: str, cluster: str, **_: Any) -> Offer:
        if cluster == "silent":
            released.wait(60)
        if cluster == "odd":
            return Offer("another", float("nan"))
        return Offer(cluster, 5.0)

    monkeypatch.setattr(several_clusters, "offer", offer)
    monkeypatch.setattr(several_clusters, "remote_cluster", lambda _: None)
    found = offers(["silent", "odd", "good"], "cora", patience=0.5)
    released.set()
    assert found[0] == Offer("silent", problem="no answer within 0.5 s, left out")
    assert found[1:] == [Offer("odd", None), Offer("good", 5.0)]


@pytest.fixture
def two(desk: Desk) -> Desk:
    """Two emulated clusters, of two nodes and of five."""
    for name, nodes in (("small", 2), ("large", 5)):
        desk.write(f"cluster/{name}.toml", f'kind = "emulator"\n[emulator]\nnodes = {nodes}\n')
    desk.write("job.toml", 'workload = "command"\nargv = ["true"]\n[resources]\nnodes = 3\n')
    return desk


def test_submit_asks_the_clusters_and_says_why_it_takes_one(two: Desk) -> None:
    code, out, err = two.type("submit ./job.toml --cluster small,large --dry-run")
    assert code == 0, err
    assert "#SBATCH --nodes=3" in out
    assert "small: Slurm refuses the job: " in err
    assert "large: would start now in partition main, 5 nodes with room for 3 - chosen" in err
    code, out, err = two.type("submit ./job.toml --cluster=small,large --hold -o json")
    run = json.loads(out)
    assert code == 0, err
    assert clusterctl.Run(two.runs / run["id"]).cluster.name == "large"
    assert two.type(f"cancel {run['id']} --cluster large")[0] == 0


class Listener(ProgressListener):
    """Keeps what it is notified of."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def begin(self, text: str, total: int | None = None) -> None:
        self.lines.append(text)


def test_python_submits_to_the_first_of_several_and_shows_their_answers(two: Desk) -> None:
    found = clusterctl.offers("small,large", "./job.toml")
    listed = clusterctl.offers(["small", "large"], "./job.toml")
    assert [one.cluster for one in found] == [one.cluster for one in listed] == ["small", "large"]
    assert str(found).splitlines()[1] == "large: would start now in partition main, 5 nodes with room for 3"
    listener = Listener()
    run = clusterctl.submit("./job.toml", "small,large", hold=True, progress=listener)
    assert run.cluster.name == found.best.cluster == "large"
    assert listener.lines[-1].endswith("with room for 3 - chosen")
    assert "--cluster large" in " ".join(run.status().record.argv), "what repeats the submission"
    swept = clusterctl.sweep("./job.toml", cluster="large, small", axes={"note": ["a", "b"]}, hold=True)
    assert {one.cluster.name for one in swept.runs} == {"large"}
    for one in (run, *swept.runs):
        one.cancel()


@pytest.mark.parametrize("argument", [{"in_allocation": "7"}, {"after": "cora"}])
def test_in_python_too_what_refers_to_one_cluster_does_not_go_with_several(two: Desk, argument: Any) -> None:
    with pytest.raises(clusterctl.UsageError, match="several are named"):
        clusterctl.submit("./job.toml", cluster="small,large", **argument)
    with pytest.raises(clusterctl.SlurmError, match="none of the clusters can start the job"):
        clusterctl.submit("./job.toml", cluster="small,large", overrides={"resources.nodes": 9})
    assert two.run_directories() == []


def test_none_that_can_start_it_submits_nothing(two: Desk) -> None:
    code, _, err = two.type("submit ./job.toml --nodes 9 --cluster small,large")
    assert (code, two.run_directories()) == (SLURM, [])
    assert "error: none of the clusters can start the job" in err


@pytest.mark.parametrize("option", ["--in-allocation 7", "--after cora"])
def test_what_refers_to_one_cluster_does_not_go_with_several(two: Desk, option: str) -> None:
    code, _, err = two.type(f"submit ./job.toml --cluster small,large {option}")
    assert code == USAGE
    assert "hint: choose one: --cluster NAME" in err


def test_several_partitions_are_taken_together() -> None:
    parts = {
        "a": Partition("a", True, True, 60, 2, ("n1", "n2")),
        "b": Partition("b", False, False, None, 4, ("n2", "n3")),
    }
    inventory = Inventory({}, parts, 0.0)
    assert inventory.partition_for("a,b") == Partition("a,b", False, True, None, 4, ("n1", "n2", "n3"))
    assert inventory.partition_for("b,gone") == Partition("b,gone", False, False, None, 4, ("n2", "n3"))
    assert inventory.partition_for("x,y") is None

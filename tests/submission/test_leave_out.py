"""Ranks killed repeatedly at the same step: which node is left out, and when the run ends. No real Slurm is used."""

from __future__ import annotations

from pathlib import Path
from shlex import quote

import pytest
from support.batch_host import ALL_DONE, CHECKPOINT, ONE_KILLED, Host

from clusterctl.launcher.observe.attempt import Kills, LeftOut, read_host
from clusterctl.shared.record.marks import Refusal
from clusterctl.shared.spec.job import Grow, Restart

SHOWN = "JobState=RUNNING TimeLimit=01:00:00 Partition=main ReqNodeList=(null) ExcNodeList=(null) Features=(null) X=1"
FOUR = "n1 n2 n3 n4"


def killed(node: str, step: int | None = 5, how: str = "Killed") -> str:
    """A rank is killed on `node`, and srun ends the other."""
    logged = "" if step is None else f'echo \'{{"step": {step}, "loss": 1}}\' >>"$attempt/metrics.jsonl"\n'
    first, other = f"srun: error: {node}: task 1: {how}", "srun: error: n1: task 0: Terminated"
    return f"{ONE_KILLED}{logged}echo '{first}' >&2; echo '{other}' >&2; exit 137\n"


def nodes_of(names: str, **states: str) -> str:
    """What sinfo shows of these nodes; by default all are alike and idle."""
    usual = "8000 0/8/0/8 gpu:a100:4(S:0-1) idle a,b"
    return "\n".join(f"main* {name} {states.get(name, usual)}" for name in names.split())


def site(folder: Path, shown: str = SHOWN, nodes: str = "", **restart: object) -> Host:
    """A job on n1 and n2, in a partition of four nodes that are all alike."""
    host = Host(folder, nodes=2, tasks_per_node=1, restart=Restart(**restart))  # type: ignore[arg-type]
    host.scontrol = (
        'case "$*" in "show job 13") echo "JobState=PENDING Reason=Dependency" ;;\n'
        f'"show job "*) echo {quote(shown)} ;;\n"show reservation r") echo "ReservationName=r Nodes=n1,n2,n3 X=1" ;;\n'
        '"show hostnames n[1-2]") printf "n1\\nn2\\n" ;;\n"show hostnames "*) tr , "\\n" <<<"$3" ;; esac'
    )
    host.others = {"sinfo": f"printf '%s\\n' {quote(nodes or nodes_of(FOUR))}"}
    host.others |= {"sbatch": "echo 13", "squeue": "", "scancel": ""}
    host.environment = {"SLURM_JOB_NUM_NODES": "2"}
    return host


def elsewhere(host: Host) -> Host:
    """From now on the job is on n1 and n3."""
    host.scontrol = host.scontrol.replace('printf "n1\\nn2\\n"', 'printf "n1\\nn3\\n"')
    return host


def call(host: Host, *attempts: str, restarts: int = 0) -> int:
    """The script's exit code; each attempt's ranks do what `attempts` has for it."""
    body = "case $CLUSTERCTL_ATTEMPT in\n" + "".join(f"{n}) {text} ;;\n" for n, text in enumerate(attempts)) + "esac\n"
    return host.call(body, restarts)


def updates(host: Host) -> list[str]:
    asked = host.asked.read_text() if host.asked.exists() else ""
    return [line for line in asked.splitlines() if line.startswith("update")]


TWICE = [killed("n2"), killed("n2")]


def test_the_run_goes_to_the_queue_without_the_node_on_which_ranks_are_killed(tmp_path: Path) -> None:
    host = site(tmp_path, by="requeue")
    assert call(host, *TWICE, ALL_DONE) == 137
    assert (host.requeues, updates(host)) == (["requeue 12"], ["update JobId=12 ExcNodeList=n2"])
    first, second = (read_host(host.run.attempt(number)) for number in range(2))
    assert (first.restarting, first.kills, first.excluded) == (True, Kills(5, 1, ""), ())
    assert (second.requeued, second.kills) == (True, Kills(5, 2, "n2"))
    assert second.excluded == (LeftOut("n2", "killed", ""),)
    assert call(host, *TWICE, ALL_DONE, restarts=1) == 0
    assert host.run.finished_json.exists()


@pytest.mark.parametrize("node", ["n1", "n3"])
def test_a_kill_at_that_step_without_the_node_ends_the_run(tmp_path: Path, node: str) -> None:
    """Whether there is a checkpoint or not."""
    host = site(tmp_path, by="requeue")
    assert call(host, *TWICE) == 137
    assert call(elsewhere(host), *TWICE, CHECKPOINT + killed(node), restarts=1) == 137
    last = read_host(host.run.attempt(2))
    assert (last.refused, last.kills) == (Refusal.KILLED_AGAIN, Kills(5, 3, "n2"))
    assert str(last.kills) == "a rank was killed 3 times in a row at step 5, without n2"
    assert len(host.requeues) == 1
    assert len(host.run.attempts()) == 3


def test_if_slurm_was_faster_than_the_exclusion_it_is_repeated(tmp_path: Path) -> None:
    host = site(tmp_path, by="requeue")
    assert call(host, *TWICE) == 137
    assert call(host, *TWICE, killed("n2"), restarts=1) == 137
    assert updates(host) == ["update JobId=12 ExcNodeList=n2"] * 2
    assert read_host(host.run.attempt(2)).kills == Kills(5, 3, "n2")


def test_a_kill_at_a_later_step_without_the_node_restarts_the_run_as_any_other(tmp_path: Path) -> None:
    host = site(tmp_path, by="requeue")
    assert call(host, *TWICE) == 137
    assert call(host, *TWICE, killed("n1", 6), killed("n1", 7), ALL_DONE, restarts=1) == 0
    assert len(host.requeues) == 1


def test_with_a_successor_that_job_leaves_the_node_out(tmp_path: Path) -> None:
    host = site(tmp_path, by="successor")
    arranged = "until [ -s successor.json ]; do sleep 0.1; done\n"
    assert call(host, arranged + killed("n2"), killed("n2")) == 137
    assert (host.requeues, updates(host)) == ([], ["update JobId=13 ExcNodeList=n2"])
    host.environment |= {"cctl_succeeds": "12", "cctl_starts": "1"}
    host.job = "13"
    assert call(elsewhere(host), *TWICE, killed("n1")) == 137
    assert read_host(host.run.attempt(2)).refused is Refusal.KILLED_AGAIN


def test_a_run_that_restarts_through_the_queue_leaves_the_node_out_there(tmp_path: Path) -> None:
    """Even though the second start saved nothing."""
    host = site(tmp_path, where="queue", by="requeue")
    assert call(host, CHECKPOINT + killed("n2")) == 137
    assert call(host, "", killed("n2"), restarts=1) == 137
    assert len(host.requeues) == 2
    assert updates(host) == ["update JobId=12 ExcNodeList=n2"]


DRAINED = nodes_of(FOUR, n3="8000 0/8/0/8 gpu:a100:4 draining a", n4="8000 0/8/0/8 gpu:a100:4 down* a")


@pytest.mark.parametrize(
    ("shown", "nodes", "enough"),
    [
        ("X=1", nodes_of("n1 n2 n3"), True),
        ("X=1", nodes_of("n1 n2"), False),  # the job needs two
        ("ExcNodeList=n3,n4", nodes_of(FOUR), False),
        ("ReqNodeList=n2", nodes_of(FOUR), False),  # the user wants it
        ("Features=c", nodes_of("n1 n2 n3", n3="8000 0/8/0/8 gpu:a100:4 idle a,b"), False),
        ("Features=[a|b]", nodes_of(FOUR), False),  # which nodes go together is not known
        ("Reservation=r", nodes_of(FOUR), True),
        ("Reservation=r ExcNodeList=n3", nodes_of(FOUR), False),
        ("X=1", DRAINED, False),
        ("X=1", DRAINED.replace("draining", "idle+powered_down"), True),
        ("X=1", DRAINED.replace("draining", "idle+not_responding"), False),
        ("X=1", nodes_of("n1 n2 n3", n3="4000 0/8/0/8 gpu:a100:4 idle a"), False),  # smaller
        ("X=1", nodes_of("n1 n2 n3", n3="8000 0/4/0/4 gpu:a100:4 idle a"), False),
        ("X=1", nodes_of("n1 n2 n3", n3="8000 0/8/0/8 (null) idle a"), False),  # has no GPU
        ("X=1", nodes_of("n1 n2 n3", n3="16000 0/16/0/16 gpu:a100:4 idle a"), True),
        ("X=1", nodes_of(FOUR).replace("main*", "other"), False),
        ("X=1", "", False),  # no answer
    ],
)
def test_it_does_so_only_if_enough_other_nodes_remain(tmp_path: Path, shown: str, nodes: str, enough: bool) -> None:
    """Otherwise it might wait in the queue for good: it starts again on the same nodes, as far as that goes."""
    host = site(tmp_path, f"JobState=RUNNING Partition=main {shown} Y=1", nodes or " ", by="requeue")
    assert call(host, *TWICE, ALL_DONE) == (137 if enough else 0)
    assert host.requeues == (["requeue 12"] if enough else [])
    kept = "node n2 is not left out: this job needs 2 nodes, and Slurm shows"
    assert (kept in host.run.attempt(1).host_log.read_text()) == (not enough)
    assert read_host(host.run.attempt(1)).kills == Kills(5, 2, "n2" if enough else "")


def test_as_long_as_it_cannot_be_left_out_the_limit_of_restarts_without_progress_counts(tmp_path: Path) -> None:
    host = site(tmp_path, nodes=nodes_of("n1 n2"), by="requeue")
    assert call(host, *[killed("n2")] * 9) == 137
    assert len(host.run.attempts()) == 5
    assert read_host(host.run.attempt(4)).refused is Refusal.NO_PROGRESS


@pytest.mark.parametrize(
    "how", ["Exited with exit code 1", "Out Of Memory"], ids=["another rank's", "memory: another node has no more"]
)
def test_without_a_node_to_blame_the_third_kill_ends_the_run(tmp_path: Path, how: str) -> None:
    host = site(tmp_path, by="requeue")
    assert call(host, *[killed("n2", how=how)] * 9) == 137
    last = read_host(host.run.attempt(2))
    assert (last.refused, last.kills, host.requeues) == (Refusal.KILLED_AGAIN, Kills(5, 3, ""), [])
    assert str(last.kills) == "a rank was killed 3 times in a row at step 5, and no node is to blame"


def test_kills_on_two_nodes_blame_none(tmp_path: Path) -> None:
    host = site(tmp_path, by="requeue")
    assert call(host, killed("n2"), killed("n1"), killed("n2"), ALL_DONE) == 137
    assert (read_host(host.run.attempt(2)).refused, host.requeues) == (Refusal.KILLED_AGAIN, [])


def test_a_node_may_be_blamed_for_the_later_ones_of_several_kills(tmp_path: Path) -> None:
    host = site(tmp_path, by="requeue")
    assert call(host, killed("n1"), killed("n2"), killed("n2"), ALL_DONE) == 137
    assert (host.requeues, updates(host)) == (["requeue 12"], ["update JobId=12 ExcNodeList=n2"])


def test_a_larger_limit_of_restarts_without_progress_counts_if_no_node_is_to_blame(tmp_path: Path) -> None:
    host = site(tmp_path, by="requeue", without_progress=5)
    assert call(host, *[killed("n1"), killed("n2")] * 4) == 137
    assert (len(host.run.attempts()), read_host(host.run.attempt(4)).refused) == (5, Refusal.KILLED_AGAIN)


def test_kills_at_a_step_beyond_which_the_run_has_got_before_blame_no_node(tmp_path: Path) -> None:
    """Somebody kills ranks at random."""
    host = site(tmp_path, by="requeue")
    assert call(host, killed("n2", 9), killed("n2"), killed("n2"), ALL_DONE) == 0
    assert read_host(host.run.attempt(2)).kills is None


def test_kills_before_the_first_step_blame_no_node(tmp_path: Path) -> None:
    """They count as restarts without progress only."""
    host = site(tmp_path, by="requeue")
    assert call(host, *[killed("n2", None)] * 9) == 137
    assert len(host.run.attempts()) == 4
    assert (read_host(host.run.attempt(3)).refused, updates(host)) == (Refusal.NO_PROGRESS, [])


def test_a_run_that_may_not_go_through_the_queue_again_keeps_its_nodes(tmp_path: Path) -> None:
    host = site(tmp_path, by="requeue", limit=1)
    assert call(host, *TWICE, ALL_DONE, restarts=1) == 0


def test_kills_before_a_resume_by_hand_do_not_count(tmp_path: Path) -> None:
    host = site(tmp_path, by="requeue", where="queue")
    assert call(host, killed("n2")) == 137
    assert read_host(host.run.attempt(0)).refused is Refusal.NO_PROGRESS
    host.job = "20"
    assert call(host, "", killed("n2")) == 137
    assert read_host(host.run.attempt(1)).kills == Kills(5, 1, "")


def test_a_run_that_gets_more_memory_has_not_been_killed_in_vain(tmp_path: Path) -> None:
    host = site(tmp_path, grow=Grow(memory=1.5))
    host.environment |= {"SLURM_MEM_PER_NODE": "4000"}
    oom = "echo 'slurmstepd: error: Detected 1 oom_kill event in StepId=12.0. Some of the step tasks ...' >&2\n"
    assert call(host, oom + killed("n2")) == 137
    assert (read_host(host.run.attempt(0)).requeued, read_host(host.run.attempt(0)).kills) == (True, None)


CUT = 'touch "$attempt"/marks/0000{0,1}.cut; exit 1\n'
DRAINING = "8000 0/8/0/8 gpu:a100:4(S:0-1) draining a,b"


def with_state(host: Host, node: str, state: str) -> Host:
    """What sinfo answers about the states alone; n4 is no node of the job."""
    states = f'case "$*" in *=NodeList*) printf "n4 down\\n{node} {state}\\n" ;; *) '
    host.others["sinfo"] = f"{states}{host.others['sinfo']} ;; esac"
    return host


@pytest.mark.parametrize("state", ["mixed+drain", "allocated+not_responding", "failing"])
def test_lost_connections_are_blamed_on_a_node_that_is_failing_according_to_slurm(tmp_path: Path, state: str) -> None:
    host = with_state(site(tmp_path, nodes=nodes_of(FOUR, n2=DRAINING), by="requeue"), "n2", state)
    assert call(host, CUT, ALL_DONE) == 1
    assert (host.requeues, updates(host)) == (["requeue 12"], ["update JobId=12 ExcNodeList=n2"])
    assert read_host(host.run.attempt(0)).excluded == (LeftOut("n2", "drained", ""),)


@pytest.mark.parametrize(("state", "nodes"), [("allocated", FOUR), ("mixed+drain", "n1 n2")])
def test_otherwise_the_same_nodes_are_used_again(tmp_path: Path, state: str, nodes: str) -> None:
    host = with_state(site(tmp_path, nodes=nodes_of(nodes), by="requeue"), "n2", state)
    assert call(host, CUT, ALL_DONE) == 0
    assert host.requeues == []

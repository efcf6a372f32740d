"""What the batch script of a job with spare nodes does when it loses some, with stand-ins for Slurm's commands."""

from __future__ import annotations

from pathlib import Path
from shlex import quote

import pytest
from support.batch_host import ONE_KILLED, Host

from clusterctl.launcher.observe.attempt import Kills, read_host
from clusterctl.shared.record.marks import Refusal
from clusterctl.shared.spec.job import Restart

HELD = "n1 n2 n3"
ALL_DONE = 'for r in $(seq 0 $((ranks - 1))); do touch "$attempt/marks/0000$r.done"; done\n'
LOSE = 'touch "$attempt"/marks/0000{0,1}.running; echo %s >>"$guards/lost"; exec sleep 600\n'


def holding(folder: Path, restart: Restart = Restart(), spare_nodes: int = 1) -> Host:  # noqa: B008
    host = Host(folder, nodes=2, tasks_per_node=1, restart=restart, spare_nodes=spare_nodes)
    know(host, HELD)
    return host


def know(host: Host, listed: str) -> None:
    """Slurm's answers: the job's nodes are HELD, and by now those `listed`."""
    names, still = (quote("\n".join(nodes.split())) for nodes in (HELD, listed))
    host.scontrol = (
        f'case "$*" in "show hostnames n[1-2]") printf "%s\\n" {names} ;;\n'
        f'"show hostnames now") printf "%s\\n" {still} ;;\n"show hostnames "*) tr , "\\n" <<<"$3" ;;\n'
        '"show job "*) echo "   JobState=RUNNING NodeList=now BatchHost=n1" ;; esac'
    )


def call(host: Host, *attempts: str) -> int:
    """The script's exit code; each attempt's ranks do what `attempts` has for it."""
    called = quote(str(host.run.path / "called"))
    body = 'case "$*" in *guard.py*) exec sleep 600 ;; esac\n'
    body += f'echo "$CLUSTERCTL_ATTEMPT $SLURM_JOB_NODELIST $*" >>{called}\nguards="${{attempt%/*}}/0/guards"\n'
    body += "for w; do case $w in --ntasks=*) ranks=${w#*=} ;; esac; done\n"
    body += "case $CLUSTERCTL_ATTEMPT in\n" + "".join(f"{n}) {text} ;;\n" for n, text in enumerate(attempts)) + "esac\n"
    process = host.start(body)
    process.communicate(timeout=120)
    return process.returncode


def starts(host: Host) -> list[list[str]]:
    """The node lists of the ranks' steps: the variable, and srun's options."""
    found = []
    for line in (host.run.path / "called").read_text().splitlines():
        number, nodes, *words = line.split()
        if number.isdigit():
            assert {"--overlap", "--mem=0"} <= set(words)
            found.append([nodes, *(word for word in words if word.startswith(("--nodelist", "--nodes", "--ntasks=")))])
    return found


def test_a_lost_node_is_replaced_by_the_spare_one_in_the_same_job(tmp_path: Path) -> None:
    host = holding(tmp_path)
    assert call(host, LOSE % "n2", ALL_DONE) == 0
    assert starts(host) == [
        ["n1,n2", "--nodelist=n1,n2", "--nodes=2", "--ntasks=2"],
        ["n1,n3", "--nodelist=n1,n3", "--nodes=2", "--ntasks=2"],
    ]
    first, second = host.host(0), host.host(1)
    assert (first["lost"], first["restarting"], first["spares"]) == (["n2"], True, "n3")
    assert (second["nodes"], second["exit_code"], second["spares"]) == ("n1,n3", 0, "")
    assert [str(one) for one in read_host(host.run.attempt(1)).left_out] == [
        "n2 replaced by the spare node n3: it did not answer"
    ]
    assert "now" in host.ends.read_text().split(), "the other ranks, which wait for it, are ended at once"
    assert host.requeues == []


def test_a_lost_spare_node_disturbs_nobody_and_is_not_used_later(tmp_path: Path) -> None:
    host = holding(tmp_path)
    assert call(host, f'echo n3 >>"$guards/lost"; sleep 2; {ALL_DONE}') == 0
    assert len(starts(host)) == 1
    host = holding(tmp_path / "again")
    lost_later = f'echo n3 >>"$guards/lost"; {ONE_KILLED} sleep 2; exit 137'
    assert call(host, lost_later, LOSE % "n2") == 137
    assert host.requeues == ["requeue 12"], "there is none left"
    assert len(host.run.attempts()) == 2


def test_the_node_of_a_broken_gpu_is_replaced_by_the_spare_one(tmp_path: Path) -> None:
    """And excluded from the next start once there is none."""
    host, broke = holding(tmp_path), 'touch "$attempt/marks/00000.term" "$attempt/marks/00001.%s.broken"; exit 1'
    assert call(host, broke % "n2", broke % "n3") == 1
    assert [start[0] for start in starts(host)] == ["n1,n2", "n1,n3"]
    words = "n2 replaced by the spare node n3: a GPU there is broken"
    assert [str(one) for one in read_host(host.run.attempt(1)).left_out] == [words]
    assert host.requeues == ["requeue 12"]
    assert "update JobId=12 ExcNodeList=n3" in host.asked.read_text().splitlines()


def test_without_a_spare_node_left_the_run_goes_through_the_queue(tmp_path: Path) -> None:
    host = holding(tmp_path)
    assert call(host, LOSE % "n2", LOSE % "n3") == 137
    assert host.requeues == ["requeue 12"]
    assert (host.host(1)["lost"], host.host(1)["requeued"]) == (["n3"], True)


def test_with_min_nodes_it_goes_on_with_fewer(tmp_path: Path) -> None:
    host = holding(tmp_path, Restart(min_nodes=1))
    assert call(host, LOSE % "n2", LOSE % "n3", ALL_DONE) == 0
    assert starts(host)[-1] == ["n1", "--nodelist=n1", "--nodes=1", "--ntasks=1"]
    assert read_host(host.run.attempt(2)).rank_count == 1
    assert [str(one) for one in read_host(host.run.attempt(2)).left_out] == [
        "n2 replaced by the spare node n3: it did not answer",
        "without n3: it did not answer",
    ]
    assert host.run.finished_json.exists()


def test_the_script_of_a_node_that_the_others_have_given_up_starts_nothing_more(tmp_path: Path) -> None:
    """Its node was cut off: the others have ended the job, or still do."""
    host = holding(tmp_path, Restart(min_nodes=1))
    assert call(host, LOSE % "n1") == 137
    assert len(host.run.attempts()) == 1
    assert host.requeues == ["requeue 12"]


@pytest.mark.parametrize(
    ("listed", "states", "why"),
    [
        ("n1 n3", "n1 allocated\nn3 allocated", "down"),
        (HELD, "n1 allocated\nn2 mixed+drain\nn3 allocated", "drained"),
        (HELD, "n1 allocated\nn2 allocated+not_responding\nn3 allocated", "drained"),
        (HELD, "n1 allocated\nn2 allocated+drain\nn3 allocated+drain", None),  # no better one
        (HELD, "", None),  # no answer
    ],
)
def test_before_a_restart_slurm_is_asked_for_the_state_of_the_nodes(
    tmp_path: Path, listed: str, states: str, why: str | None
) -> None:
    host = holding(tmp_path)
    know(host, listed)
    host.others = {"sinfo": f"printf '%s\\n' {quote(states)}"}
    assert call(host, ONE_KILLED + "exit 137", ALL_DONE) == 0
    assert host.host(1)["nodes"] == ("n1,n3" if why else "n1,n2")
    assert [one.why for one in read_host(host.run.attempt(1)).left_out] == ([why] if why else [])


def killed(node: str, step: int | None = 5, how: str = "Killed", word: str = "task 1") -> str:
    """A rank is killed on `node`, and srun ends the other."""
    logged = "" if step is None else f'echo \'{{"step": {step}, "loss": 1}}\' >>"$attempt/metrics.jsonl"\n'
    first, other = f"srun: error: {node}: {word}: {how}", "srun: error: n1: task 0: Terminated"
    return f"{ONE_KILLED}{logged}echo '{first}' >&2; echo '{other}' >&2; exit 137\n"


OOM = "echo 'slurmstepd: error: Detected 1 oom_kill event in StepId=12.0. Some of the step tasks ...' >&2\n"


@pytest.mark.parametrize(
    ("attempts", "replaced"),
    [
        ([killed("n2"), killed("n2")], "n2"),
        ([killed("n1"), killed("n1")], "n1"),  # although the script is there
        ([killed("n2"), killed("n1")], None),
        ([killed("n2", 3), killed("n2", 4), killed("n2", 4)], "n2"),
        ([killed("n2"), killed("n2", word="tasks 1-2")], "n2"),
        ([killed("n2"), killed("n2", how="Exited with exit code 137")], "n2"),  # the program of a task
        ([killed("n2", 7), killed("n2"), killed("n2")], None),  # it has got beyond that step
        ([killed("n2"), killed("n2", how="Exited with exit code 1")], None),
        ([killed("n2"), OOM + killed("n2", how="Exited with exit code 137")], None),
        ([killed("n2", 3), killed("n2", 4)], None),
        ([killed("n2"), killed("n2", how="Out Of Memory")], None),  # another node has no more
        ([killed("n2", None), killed("n2", None)], None),  # before the first step
        ([killed("n9"), killed("n9")], None),
    ],
)
def test_a_node_on_which_ranks_are_killed_at_one_step_again_is_replaced(
    tmp_path: Path, attempts: list[str], replaced: str | None
) -> None:
    host = holding(tmp_path)
    assert call(host, *attempts, ALL_DONE) == 0
    last = host.run.attempt(len(attempts))
    left_out = read_host(last).left_out
    assert [(one.node, one.why, one.by) for one in left_out] == ([(replaced, "killed", "n3")] if replaced else [])
    assert host.host(len(attempts))["nodes"] == {"n1": "n3,n2", "n2": "n1,n3", None: "n1,n2"}[replaced]
    assert all(not read_host(host.run.attempt(number)).left_out for number in range(len(attempts)))


def test_a_kill_at_that_step_on_the_spare_node_ends_the_run(tmp_path: Path) -> None:
    host = holding(tmp_path)
    assert call(host, killed("n2"), killed("n2"), killed("n3"), ALL_DONE) == 137
    last = read_host(host.run.attempt(2))
    assert (last.refused, last.kills, host.requeues) == (Refusal.KILLED_AGAIN, Kills(5, 3, "n2"), [])


def test_without_a_spare_node_left_the_run_goes_to_the_queue_without_the_blamed_one(tmp_path: Path) -> None:
    """Without an answer from Slurm it goes on with all of them."""
    host = holding(tmp_path)
    attempts = (LOSE % "n2", killed("n3"), killed("n3"), ALL_DONE)
    assert call(host, *attempts) == 0
    host = holding(tmp_path / "again")
    nodes = "\n".join(f"main {name} 8000 0/8/0/8 (null) idle (null)" for name in ("n1", "n2", "n3", "n4"))
    host.others = {"sinfo": f'case "$*" in *Features*) echo {quote(nodes)} ;; esac'}
    host.scontrol = host.scontrol.replace("JobState=RUNNING", "JobState=RUNNING Partition=main")
    host.environment = {"SLURM_JOB_NUM_NODES": "3"}
    assert call(host, *attempts) == 137
    assert host.requeues == ["requeue 12"]
    assert "update JobId=12 ExcNodeList=n3" in host.asked.read_text().splitlines()


def test_nothing_starts_if_slurm_does_not_list_the_nodes(tmp_path: Path) -> None:
    host = holding(tmp_path)
    host.scontrol = "exit 1"
    assert call(host, ALL_DONE) == 69
    assert not host.run.finished_json.exists()

"""Plans and tokens: nothing happens without a token, and a token does what its plan shows, once."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from support.mistake import Desk

from clusterctl.launcher.api.agents import reading
from clusterctl.launcher.api.agents.plans import ACTIONS, TOKEN_SECONDS, Limits, Plans
from clusterctl.launcher.api.agents.server import Agents
from clusterctl.shared.errors import ClusterctlError, UsageError

from .conftest import lines_of

ANOTHER_JOB = 'workload = "command"\nargv = ["false"]\n[resources]\ntime = "1h"\n[restart]\nlimit = 0\n'


def test_a_plan_submits_nothing_and_its_token_submits_once(desk: Desk, plans: Plans) -> None:
    plan = plans.plan_submit("./job.toml")
    assert (plan["plan"]["nodes"], plan["plan"]["node_hours_at_most"], desk.asked("sbatch")) == (1, 1.0, 0)
    assert desk.run_directories() == []
    done = plans.apply(plan["token"])
    assert [path.name for path in desk.run_directories()] == [done["run"]]
    with pytest.raises(UsageError, match="has been used"):
        plans.apply(plan["token"])
    assert len(desk.run_directories()) == 1
    assert [line.get("action") for line in lines_of(plans.limits.file)] == ["submit", "submit: done"]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ("job.toml", ANOTHER_JOB),
        ("cluster/site.toml", 'kind = "slurm"\npolling_floor = 0\npartition = "other"\n'),
        ("train.py", "print('other code')\n"),
    ],
)
def test_a_token_is_bound_to_its_job_its_cluster_and_its_code(desk: Desk, plans: Plans, change: str, text: str) -> None:
    desk.write("train.py", "print('code')\n")
    plan = plans.plan_submit("./job.toml")
    desk.write(change, text)
    with pytest.raises(UsageError, match="has changed since the plan"):
        plans.apply(plan["token"])
    assert desk.run_directories() == []


def test_the_same_plan_has_the_same_digest(desk: Desk, plans: Plans) -> None:
    first, second = (plans.plan_submit("./job.toml") for _ in range(2))
    assert first["plan"] == second["plan"]
    assert first["token"] != second["token"]
    other = plans.plan_submit("./job.toml", settings={"resources.nodes": 2})
    assert other["plan"]["digest"] != first["plan"]["digest"]


def test_tokens_expire_and_are_not_those_of_another_server(desk: Desk) -> None:
    now = [0.0]
    limits = Limits(4, 10, desk.folder)
    plans, other = (Plans(frozenset(ACTIONS), limits, clock=lambda: now[0]) for _ in range(2))
    token = plans.plan_submit("./job.toml")["token"]
    for wrong in ("", "x", token[:-1], token.swapcase(), f"{token} "):
        with pytest.raises(UsageError, match="unknown"):
            plans.apply(wrong)
    with pytest.raises(UsageError, match="unknown"):
        other.apply(token)
    now[0] += TOKEN_SECONDS + 1
    assert plans.question(token) is None
    with pytest.raises(UsageError, match="expired"):
        plans.apply(token)
    assert desk.run_directories() == []


def test_a_plan_beyond_the_limits_is_refused_and_so_is_a_token_once_they_are_used_up(desk: Desk, plans: Plans) -> None:
    for settings, expected in (
        ({"resources.nodes": 5}, "5 nodes are more"),
        ({"resources.spare_nodes": 4, "restart.limit": 1}, "5 nodes are more"),
        ({"resources.nodes": 4, "resources.time": "3h"}, "up to 12 node-hours"),
        ({"restart.limit": 20}, "up to 21 node-hours"),
    ):
        with pytest.raises(UsageError, match=expected):
            plans.plan_submit("./job.toml", settings=settings)
    tokens = [plans.plan_submit("./job.toml", settings={"resources.nodes": 4})["token"] for _ in range(3)]
    assert [bool(plans.apply(token)["run"]) for token in tokens[:2]] == [True, True]
    with pytest.raises(UsageError, match="only 2 more until tomorrow"):
        plans.apply(tokens[2])
    assert len(desk.run_directories()) == 2


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("#!/bin/bash\n#SBATCH --time=1:00:00\ntrue\n", "resources.nodes"),
        ("#!/bin/bash\n#SBATCH --nodes=1\ntrue\n", "resources.time"),
        ("#!/bin/bash\n#SBATCH --nodes=1-9\n#SBATCH --time=60\ntrue\n", "resources.nodes"),
        ("#!/bin/bash\n#SBATCH --ntasks=900\n#SBATCH --time=60\ntrue\n", "resources.nodes"),
        ("#!/bin/bash\n#SBATCH -N 1 -t 60 --array=0-9\ntrue\n", "an array"),
        ("#!/bin/bash\n#SBATCH -N 5 -t 60\ntrue\n", "5 nodes are more"),
    ],
)
def test_a_batch_script_without_known_limits_is_refused(desk: Desk, plans: Plans, text: str, expected: str) -> None:
    desk.write("train.sbatch", text)
    with pytest.raises(ClusterctlError, match=expected):
        plans.plan_submit("./train.sbatch")


def test_a_batch_script_and_a_program_are_submitted_as_they_are(desk: Desk, plans: Plans) -> None:
    desk.write("train.sbatch", "#!/bin/bash\n#SBATCH -N 2 -t 30\ntrue\n")
    script = plans.plan_submit("./train.sbatch", program=["--lr", "3e-3"])
    assert (script["plan"]["nodes"], script["plan"]["seconds"], script["plan"]["program"][-1]) == (2, 1800, "3e-3")
    assert plans.apply(script["token"])["run"].startswith("train-")
    program = plans.plan_submit(program=["python", "-c", "print(1)"], settings={"restart.limit": 0})
    assert (plans.question(program["token"]) or "").endswith("--set restart.limit=0 -- python -c 'print(1)'")
    assert plans.apply(program["token"])["run"].startswith("python-")


@pytest.mark.parametrize(
    "job", ["/etc/passwd", "../outside.toml", "~/job.toml", "./link.toml", "-x", "/dev/zero", "./.", "\0", "link.sh"]
)
def test_files_outside_of_the_project_are_not_read(desk: Desk, plans: Plans, job: str) -> None:
    outside = desk.folder / "outside.toml"
    outside.write_text(ANOTHER_JOB)
    (desk.project / "link.toml").symlink_to(outside)
    (desk.folder / "outside.sh").write_text("#!/bin/bash\n#SBATCH -N 1 -t 5\ntrue\n")
    (desk.project / "link.sh").symlink_to(desk.folder / "outside.sh")
    agents = Agents(plans)
    calls: list[Callable[[], Any]] = [lambda: plans.plan_submit(job)]
    calls += [lambda tool=tool: agents.call(tool, {"job": job}) for tool in ("job", "fit")]  # type: ignore[misc]
    for call in calls:
        with pytest.raises(UsageError, match="not a job of this project"):
            call()


@pytest.mark.parametrize(
    "settings",
    [
        {"code": "/etc"},
        {"env.LD_PRELOAD": "x"},
        {"env": {"A": "b"}},
        {"notify.command": ["sh"]},
        {"track.wandb": True},
        {"resources.sbatch.export": "ALL"},
        {"resources.nodes=9\nx": 1},
        {"--set": 1},
        {"resources.comment": "x" * 3000},
    ],
    ids=str,
)
def test_settings_that_reach_beyond_the_run_are_refused(desk: Desk, plans: Plans, settings: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="settings"):
        plans.plan_submit("./job.toml", settings=settings)


def test_code_outside_of_the_project_is_not_copied(desk: Desk, plans: Plans) -> None:
    (desk.folder / "secrets").mkdir()
    desk.write("job.toml", f'code = "{desk.folder / "secrets"}"\n{ANOTHER_JOB}')
    with pytest.raises(UsageError, match="outside of the project"):
        plans.plan_submit("./job.toml")


def test_each_action_needs_to_be_allowed(desk: Desk) -> None:
    def tools(*allowed: str) -> set[str]:
        return {tool.name for tool in Plans(frozenset(allowed), Limits(1, 1, desk.folder)).tools}

    assert tools() == set()
    assert tools("submit") == {"plan_submit", "plan_rerun", "apply"}
    assert tools("resume") == {"plan_resume", "apply"}
    assert tools("cancel") == {"plan_cancel", "apply"}


def test_runs_are_continued_and_repeated_by_their_ids(desk: Desk, plans: Plans) -> None:
    submitted = plans.apply(plans.plan_submit("./job.toml")["token"])["run"]  # Slurm then forgets its job
    more = plans.plan_resume("@last", settings={"resources.memory": "2G"})
    assert (more["plan"]["runs"], more["plan"]["action"]) == ([submitted], "resume")
    again = plans.plan_rerun("@last", settings={"resources.time": "2h"})
    assert (again["plan"]["runs"], again["plan"]["changed"]) == ([submitted], ["resources.time"])
    repeated = plans.apply(again["token"])["run"]
    assert repeated != submitted
    assert plans.apply(more["token"])["run"] == submitted  # although another one is @last now
    assert (desk.asked("sbatch"), len(desk.run_directories())) == (3, 2)


def test_a_run_that_has_moved_on_is_not_continued_by_an_old_plan(desk: Desk, plans: Plans) -> None:
    run = plans.apply(plans.plan_submit("./job.toml")["token"])["run"]
    first, second = (plans.plan_resume(run)["token"] for _ in range(2))
    plans.apply(first)
    (desk.runs / run / "attempts" / "0").mkdir(parents=True)
    with pytest.raises(ClusterctlError):
        plans.apply(second)
    assert desk.asked("sbatch") == 2


def test_a_stage_is_not_continued_since_others_would_start_with_it(desk: Desk, plans: Plans) -> None:
    run = plans.apply(plans.plan_submit("./job.toml")["token"])["run"]
    record = desk.runs / run / "run.json"
    record.write_text(json.dumps({**json.loads(record.read_text()), "stage": "train"}))
    with pytest.raises(UsageError, match="later stages of its job would start"):
        plans.plan_resume(run)


@pytest.mark.parametrize("sent", ["", "no", "[1]", "5", "[" * 100_000, '{"next_cursor": "x", "pages_left": 9}'])
def test_an_answer_of_a_host_that_lies_is_refused_or_harmless(
    plans: Plans, monkeypatch: pytest.MonkeyPatch, sent: str
) -> None:
    monkeypatch.setattr(reading, "read_there", lambda *_: sent)
    if sent.startswith("{"):
        assert Agents(plans).call("runs", {}) == {}
        return
    with pytest.raises(ClusterctlError, match="invalid answer"):
        Agents(plans).call("runs", {})

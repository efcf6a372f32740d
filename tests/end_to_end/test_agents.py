"""A scripted agent works on real runs: it finds why one failed, repairs it, and cancels another; also through ssh."""

from __future__ import annotations

from typing import Any

import pytest
from support.agent import Agent, Refused, an_agent
from support.far import FarStage
from support.scenario import CLUSTERCTL, Stage, wait_until

from mcp import StdioServerParameters  # isort: skip

ALL = ("--allow", "submit,resume,cancel", "--max-nodes", "2", "--max-node-hours", "5")
PROGRAM = """import pathlib
import sys
import time

if "--lr" not in sys.argv:
    raise ValueError("--lr is missing")
print("learning", flush=True)
time.sleep(600 if "--long" in sys.argv else 0)
"""
ONCE = {"restart.limit": 0, "resources.time": "10m"}


def server_of(stage: Stage, *options: str) -> StdioServerParameters:
    return StdioServerParameters(command=CLUSTERCTL, args=["mcp", *options], env=stage.environment, cwd=stage.folder)


def until(agent: Agent, run: str, *states: str) -> dict[str, Any]:
    """The status of a run once it is in one of these states."""

    def found() -> dict[str, Any] | None:
        status: dict[str, Any] = agent.call("status", run=run)["run"]
        return status if status["stage"] in states else None

    return dict(wait_until(found, 60, f"{run} to be {states}", every=1))


def works(agent: Agent) -> None:
    submitted = agent.apply(agent.call("plan_submit", program=["python", "train.py"], settings=ONCE))["run"]
    until(agent, submitted, "failed")
    why = agent.call("why", run=submitted)
    assert (why["class"], why["certainty"], why["rank"]) == ("user-error", "certain", 0)
    assert "ValueError: --lr is missing" in why["program_output"]
    assert "--lr" not in str({key: value for key, value in why.items() if key != "program_output"})

    repaired = agent.call("plan_submit", program=["python", "train.py", "--lr", "1"], settings=ONCE)
    run = agent.apply(repaired)["run"]
    until(agent, run, "finished")
    assert agent.call("logs", run=run, search="learning")["lines"] == 1
    changed = {one["key"] for one in agent.call("diff", first=submitted, second=run)["configuration"]}
    assert changed == {"argv"}

    with pytest.raises(Refused, match="has finished"):
        agent.call("plan_resume", run=run)
    long = agent.call("plan_submit", program=["python", "train.py", "--lr", "1", "--long"], settings=ONCE)
    living = agent.apply(long)["run"]
    wait_until(lambda: agent.call("logs", run=living)["lines"], 60, "its output", every=1)
    assert agent.apply(agent.call("plan_cancel", runs=[living]))["cancelled"] == [living]
    until(agent, living, "cancelled")
    with pytest.raises(Refused, match="all of these runs have ended"):
        agent.call("plan_cancel", runs=[living, run])
    with pytest.raises(Refused, match="node-hours"):
        agent.call("plan_submit", program=["python", "train.py"], settings={"resources.time": "6h", "restart.limit": 0})
    assert {one["id"] for one in agent.call("runs")["runs"]} == {submitted, run, living}


@pytest.mark.long
def test_an_agent_finds_a_failure_and_repairs_it(stage: Stage) -> None:
    (stage.folder / "train.py").write_text(PROGRAM)
    with an_agent(server_of(stage, "--cluster", stage.cluster, *ALL)) as agent:
        works(agent)
    assert len(agent.questions) == 4


@pytest.mark.long
def test_an_agent_works_through_a_host_that_has_no_mcp(far_stage: FarStage) -> None:
    (far_stage.folder / "train.py").write_text(PROGRAM)
    with an_agent(server_of(far_stage, "--cluster", "far", *ALL)) as agent:
        works(agent)
        assert agent.call("nodes")["nodes"]
        assert agent.call("usage")["rows"]
        assert agent.call("fit", job="synthetic")["partitions"][0]["fits_now"]
    assert not list(far_stage.far.installed.glob("**/mcp/server"))

"""The Python API with a cluster on another machine, `fetch`, and several clusters at once."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

import pytest
from support.far import FarStage

import clusterctl
from clusterctl.shared.record.states import State

WRITES = "open('result.txt', 'w').write('done'); print('hello')"


@pytest.fixture
def here(far_stage: FarStage, monkeypatch: pytest.MonkeyPatch) -> FarStage:
    """This process in the project's folder, like a notebook."""
    replace_environment(monkeypatch, far_stage.environment)
    monkeypatch.delenv("CLUSTERCTL_RUNS")
    monkeypatch.chdir(far_stage.folder)
    return far_stage


def replace_environment(monkeypatch: pytest.MonkeyPatch, environment: Mapping[str, str]) -> None:
    for name in set(os.environ) - set(environment):
        monkeypatch.delenv(name)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)


def test_a_remote_run_behaves_like_a_local_one(here: FarStage) -> None:
    run = clusterctl.submit(program=["python", "-c", WRITES], cluster="far")
    assert run.place is not None
    assert (run.place.host, run.path.parent) == ("far", here.runs)
    assert run.wait(timeout=120).state is State.FINISHED
    assert [str(line) for line in run.logs()] == ["hello"]
    assert run.status().record.cluster.name == "far"
    assert run.why().headline.cause == "the run finished"
    assert clusterctl.find(run.id, cluster="far") == run
    assert clusterctl.runs(cluster="far") == [run]
    folder = run.fetch()
    assert folder == here.folder / run.id
    assert (folder / "work" / "result.txt").read_text() == "done"
    assert json.loads((folder / "status.json").read_text())["stage"] == "finished"
    with pytest.raises(clusterctl.UsageError, match="folder exists"):
        run.fetch()


@pytest.mark.long
def test_remote_errors_are_raised_here_with_the_same_type(here: FarStage) -> None:
    with pytest.raises(clusterctl.NotFoundError, match="no runs? "):
        clusterctl.find("nothing", cluster="far")
    run = clusterctl.submit(program=["python", "-c", "raise SystemExit(3)"], cluster="far")
    with pytest.raises(clusterctl.RunFailed, match="exited with 3") as caught:
        run.wait(timeout=120)
    assert caught.value.run == run
    assert caught.value.diagnosis.headline.cause.endswith("exited with 3")
    again = run.resume(hold=True)
    assert again == run
    again.cancel()
    assert run.status().state is State.CANCELLED


@pytest.mark.long
def test_a_remote_sweep_behaves_like_a_local_one(here: FarStage) -> None:
    program = ["python", "-c", "print('{seed}')"]
    sweep = clusterctl.sweep(program=program, axes={"seed": [1, 2]}, cluster="far")
    assert sweep.settings == [{"seed": "1"}, {"seed": "2"}]
    assert sweep.wait(timeout=120).states == {State.FINISHED: 2}
    assert [[str(line) for line in run.logs()] for run in sweep.runs] == [["1"], ["2"]]


@pytest.mark.long
def test_several_clusters_are_shown_together_and_an_unreachable_one_with_its_last_status(far_stage: FarStage) -> None:
    run = far_stage.do("submit", "--wait", "--", "python", "-c", WRITES).strip()
    both = far_stage.call("status", "--cluster", "far,local", "-o", "json")
    assert both.returncode == 0, both.stderr
    there, here = json.loads(both.stdout)["clusters"]
    assert ([one["id"] for one in there["runs"]], there["problem"]) == ([run], None)
    assert here["cluster"] == "local"
    far_stage.far.stop()
    silent = far_stage.call("status", "--cluster", "far,local")
    assert silent.returncode == 0, silent.stderr
    assert "far: not responding; as of" in silent.stdout
    assert run in silent.stdout
    assert "warning: cannot connect to far" in silent.stderr
    far_stage.far.start()


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (
            ("status", "--cluster", "far,local", "--watch"),
            "several clusters can only be shown once, as a table or json",
        ),
        (("status", "--cluster", ",", "-o", "json"), "no cluster named"),
        (("fetch", "cora", "--cluster", "local"), "cora: its files are on this machine"),
    ],
)
def test_mistakes_are_reported_with_a_hint(
    words: tuple[str, ...], error: str, far_stage: FarStage, tmp_path: Path
) -> None:
    done = far_stage.call(*words)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {error}\nhint: ")

"""The Python API with a cluster on another machine, `fetch`, and several clusters at once."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

import pytest
from support.far import FarStage

import clusterctl
from clusterctl.runs.stages import Stage

WRITES = "open('result.txt', 'w').write('done'); print('hello')"


@pytest.fixture
def here(far_stage: FarStage, monkeypatch: pytest.MonkeyPatch) -> FarStage:
    """This process works in the project's folder, as a notebook would."""
    replace_environment(monkeypatch, far_stage.environment)
    monkeypatch.delenv("CLUSTERCTL_RUNS")
    monkeypatch.chdir(far_stage.folder)
    return far_stage


def replace_environment(monkeypatch: pytest.MonkeyPatch, environment: Mapping[str, str]) -> None:
    for name in set(os.environ) - set(environment):
        monkeypatch.delenv(name)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)


def test_a_run_of_another_machine_is_asked_and_acted_on_like_any_other(here: FarStage) -> None:
    run = clusterctl.submit(program=["python", "-c", WRITES], cluster="far")
    assert run.place is not None
    assert (run.place.host, run.path.parent) == ("far", here.runs)
    assert run.wait(timeout=120).stage is Stage.FINISHED
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


def test_what_goes_wrong_there_is_raised_here_as_the_same_error(here: FarStage) -> None:
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
    assert run.status().stage is Stage.CANCELLED


def test_a_sweep_of_another_machine_is_one_here(here: FarStage) -> None:
    program = ["python", "-c", "print('{seed}')"]
    sweep = clusterctl.sweep(program=program, axes={"seed": [1, 2]}, cluster="far")
    assert sweep.settings == [{"seed": "1"}, {"seed": "2"}]
    assert sweep.wait(timeout=120).stages == {Stage.FINISHED: 2}
    assert [[str(line) for line in run.logs()] for run in sweep.runs] == [["1"], ["2"]]


def test_several_clusters_are_shown_at_once_and_a_silent_one_with_its_last_answer(far_stage: FarStage) -> None:
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
def test_mistakes_are_answered_with_what_to_type(
    words: tuple[str, ...], error: str, far_stage: FarStage, tmp_path: Path
) -> None:
    done = far_stage.call(*words)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {error}\nhint: ")

"""Records of the clusterctl that had its modules in other places, before `launcher`, `shared` and `engine`.

`before_rooms/records.json` has the files of a finished run, one that failed, one that can be resumed, a sweep and a
chain, as that clusterctl recorded them on the emulator; scripts, weights and its own code are left out.
`before_rooms/outputs.json` has what it printed about them.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from support.mistake import Desk
from support.scenario import Stage

from clusterctl.shared.record.layout import RunDir

FOLDER = Path(__file__).with_name("before_rooms")
OUTPUTS = json.loads((FOLDER / "outputs.json").read_text())
FINISHED = "cora-20261126-053013-16a1"
TO_RESUME = "counts-20261126-053111-7bb0"
FIRST, SECOND = "pipeline-train-20261126-053124-1855", "pipeline-evaluate-20261126-053124-1855"
SWEEP = "rates-20261126-053135-9c2c"


@pytest.fixture
def back_end() -> str:
    return "emulator"


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> Desk:
    """A desk with the earlier runs."""
    desk = Desk(tmp_path, monkeypatch, capfdbinary)
    desk.set(NO_COLOR="1")
    write_records(desk.runs, desk.project)
    return desk


def write_records(runs: Path, project: Path) -> None:
    """Write the earlier runs to the new folder `runs`, as if `project` had been their project."""
    entries: dict[str, dict[str, Any]] = json.loads((FOLDER / "records.json").read_text())
    runs.mkdir()
    for name, entry in entries.items():
        path = runs / name
        if "link" in entry:
            path.symlink_to(entry["link"])
        elif "text" in entry:
            path.write_text(_here(entry["text"], runs, project))
        else:
            path.mkdir()
    for name, entry in reversed(entries.items()):  # a folder after what is in it
        if "mode" in entry:
            os.utime(runs / name, (entry["time"], entry["time"]))
            (runs / name).chmod(int(entry["mode"], 8))


def _here(text: str, runs: Path, project: Path) -> str:
    """`text` with paths instead of their placeholders."""
    return text.replace("@RUNS@", str(runs)).replace("@PROJECT@", str(project)).replace("@DATA@", f"{project}/cora")


def _without_time_and_owner(output: dict[str, Any]) -> dict[str, Any]:
    output.pop("as_of", None)
    for row in output.get("rows", ()):  # of `usage`, by user
        del row["name"]
    return output


@pytest.mark.parametrize("words", [words for words in OUTPUTS if not words.startswith("logs")])
def test_the_values_of_earlier_runs_are_as_before(desk: Desk, words: str) -> None:
    code, out, err = desk.type(f"{words} -o json")
    assert (code, err) == (0, "")
    before = json.loads(_here(json.dumps(OUTPUTS[words]), desk.runs, desk.project))
    assert _known(_without_time_and_owner(json.loads(out)), before) == before


def _known(now: Any, before: Any) -> Any:
    """`now` without the keys that there were not before."""
    if isinstance(now, dict) and isinstance(before, dict):
        return {key: _known(value, before[key]) for key, value in now.items() if key in before}
    if isinstance(now, list) and isinstance(before, list) and len(now) == len(before):
        return [_known(*pair) for pair in zip(now, before, strict=True)]
    return now


@pytest.mark.parametrize("words", [words for words in OUTPUTS if words.startswith("logs")])
def test_the_logs_of_earlier_runs_are_as_before(desk: Desk, words: str) -> None:
    assert desk.type(words) == (0, OUTPUTS[words], "")


@pytest.mark.parametrize(("name", "shown"), [(FINISHED, "0.3838"), (SWEEP, f"{SWEEP}.2")])
def test_earlier_runs_and_sweeps_have_reports(desk: Desk, name: str, shown: str) -> None:
    code, out, err = desk.type(f"report {name} --output -")
    assert (code, err, shown in out) == (0, "", True)


def test_earlier_runs_resume_with_their_own_project_and_the_current_library(stage: Stage) -> None:
    write_records(stage.runs, stage.folder)
    before = RunDir(stage.runs / TO_RESUME).snapshot
    for name, again in ((TO_RESUME, [TO_RESUME]), (FIRST, [FIRST, SECOND]), (SWEEP, [SWEEP])):
        done = stage.call("resume", name, "--cluster", "local")
        assert (done.returncode, done.stdout.split()) == (0, again), done.stderr
    for name in (TO_RESUME, FIRST, SECOND, f"{SWEEP}.1"):
        stage.wait_for_state(RunDir(stage.runs / name), "finished")
    run = RunDir(stage.runs / TO_RESUME)
    assert [stage.log(run, rank, attempt=1) for rank in (0, 1)] == 2 * ["done from step 4\n"]
    assert stage.status(run)["step"] == 6
    log = stage.log(run, 0, "err", attempt=1)
    assert log.count("FutureWarning: clusterctl.runs.log is now clusterctl.program.log") == 1
    assert run.snapshot != before
    assert (run.snapshot / "lib" / "clusterctl" / "program.py").is_file()
    assert _contents(run.snapshot / "project") == _contents(before / "project")


def _contents(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}

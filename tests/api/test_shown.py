"""What Python shows of the API's values: the command line's text, in a notebook its table, and what `wait` shows."""

from __future__ import annotations

import inspect
import io
import re
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from html import unescape
from pathlib import Path
from typing import get_args

import pytest
from display.conftest import FINISHED, TRAINING, status
from rich.console import Console
from support.made_runs import busy_files, ended, falling, write_sweep
from support.mistake import Desk, check_plain
from support.screens import contrast

import clusterctl
from clusterctl.launcher.api.notify import Tracked
from clusterctl.launcher.api.run import Output, Roles, Run, Runs, waited
from clusterctl.launcher.api.sweeps import Sweep
from clusterctl.launcher.config.shown import Shown
from clusterctl.launcher.display import drawer
from clusterctl.launcher.observe.logs import Line
from clusterctl.launcher.observe.rank_events import RoleStatus
from clusterctl.launcher.remote.values import decoded, encoded, resolved
from clusterctl.shared.errors import ClusterctlError, ConfigError
from clusterctl.shared.record.layout import RunDir
from clusterctl.shared.record.states import State

HOSTILE = "\x1b[31m</pre><script>alert(1)</script>\u202e\x00"
SWEEP = "fit-20260102-030405-00a1"
PLAIN = (str, Path, type(None), dict, Line)  # shown as Python shows them


@pytest.fixture(autouse=True)
def face() -> None:
    assert clusterctl.find  # from here on, values are drawn


@pytest.fixture
def busy(fabricate: Callable[..., RunDir]) -> Run:
    return Run(fabricate("cora-20260102-030405-00a1", busy_files()).path)


def returned(function: object) -> object:
    """The type of what a public function, method or property returns."""
    found = inspect.unwrap(function.fget if isinstance(function, property) else function)  # type: ignore[arg-type]
    annotation = inspect.get_annotations(found).get("return")
    return resolved(annotation, found.__module__) if annotation else None


def test_everything_that_the_api_returns_is_drawn() -> None:
    functions = [getattr(clusterctl, name) for name in clusterctl.__all__ if name != "runs"]
    members = [one for cls in (Run, Sweep) for name, one in vars(cls).items() if not name.startswith("_")]
    methods = [one for one in members if inspect.isfunction(one)]
    hints = [*map(returned, [*filter(inspect.isfunction, functions), *methods])]
    undrawn = {
        cls.__name__
        for cls in hints
        if isinstance(cls, type) and not issubclass(cls, PLAIN)
        if drawer.draw.dispatch(cls) is drawer.draw.dispatch(object) or not issubclass(cls, Shown)
    }
    assert undrawn <= {"dict", "list", "bool", "int", "Any"}  # of `result`: what a user's function returned
    hints += [returned(one) for one in members if isinstance(one, property)]
    of_drawn = {
        str(hint) for hint in hints for one in get_args(hint) if isinstance(one, type) and issubclass(one, Shown)
    }
    assert (Runs in hints, of_drawn) == (True, set())  # a plain list of runs would not be a table


def test_a_value_is_shown_as_the_command_line_shows_it(desk: Desk, fabricate: Callable[..., RunDir]) -> None:
    for place in (1, 2):
        fabricate(f"cora-20260102-030405-00a{place}", ended(falling(place / 4)))
    first, second = (f"cora-20260102-030405-00a{place}" for place in (1, 2))
    for value, typed in (
        (clusterctl.why(first), f"why {first}"),
        (clusterctl.diff(first, second), f"diff {first} {second}"),
        (clusterctl.nodes("local"), "nodes --cluster local"),
        (clusterctl.load("cora", cluster="local"), "config show cora --cluster local"),
    ):
        out = desk.type(typed)[1]
        lines = [" ".join(line.split()) for line in str(value).splitlines()]
        assert set(filter(None, lines)) - {"KEY VALUE FROM"} <= {" ".join(line.split()) for line in out.splitlines()}, (
            typed
        )
    assert str(clusterctl.plan("cora", cluster="local")).startswith("#!/bin/bash\n#SBATCH --job-name=cora\n")
    shown = str(clusterctl.runs())
    assert [line.split()[0] for line in shown.splitlines()] == ["RUN", second, first]
    assert str(clusterctl.find(first)) == first
    assert "CPU-HOURS" in str(clusterctl.usage())


def test_the_list_of_runs_is_a_table_even_if_it_is_asked_for_first(
    desk: Desk, fabricate: Callable[..., RunDir], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Shown, "drawer", None)  # as after `import clusterctl`
    fabricate("cora-20260102-030405-00a1", ended(falling(0.5)))
    assert "cora-20260102-030405-00a1" in (clusterctl.runs()._repr_html_() or "")


def test_a_sweep_and_its_status_are_tables(fabricate: Callable[..., RunDir], tmp_path: Path) -> None:
    for place in range(2):
        fabricate(f"{SWEEP}.{place}", ended(falling(place / 4)))
    made = write_sweep(tmp_path / "runs", SWEEP, [{"train.lr": rate} for rate in ("1e-3", "1e-2")])
    sweep = Sweep(made.path)
    assert str(sweep) == SWEEP
    assert str(sweep.status()).splitlines()[1] == "best loss: 0.0000 of .0: train.lr=1e-3"
    assert "1e-2" in unescape(sweep._repr_html_() or "")


def test_the_metric_that_ranks_a_sweep_is_shown_beside_its_settings(
    fabricate: Callable[..., RunDir], tmp_path: Path
) -> None:
    for place in range(2):
        fabricate(f"{SWEEP}.{place}", ended(falling(0.5, val_accuracy=0.5 + place / 8, test_accuracy=0.25)))
    settings = [{"train.lr": rate, "train.hidden_channels": 64 * (rate == "1e-3")} for rate in ("1e-3", "1e-2")]
    sweep = Sweep(write_sweep(tmp_path / "runs", SWEEP, settings).path)
    for width in (60, 80, 200):
        file = io.StringIO()
        drawer.draw(sweep.status(), Console(file=file, width=width))
        titles, first, second = file.getvalue().splitlines()[-3:]
        assert titles.split()[:4] == ["RUN", "lr", "hidden_channels", "VAL"]
        assert titles.count("VAL") == 1
        assert (first.split()[3], second.split()[3]) == ("0.6250", "0.5000")


def test_colours_are_legible_in_light_and_dark_notebooks() -> None:
    shown = "".join(drawer.html(status("cora-20260102-030405-00a1", state)) for state in State)
    colours = set(re.findall(r"[^-]color: (#[0-9a-f]{6})", shown))
    assert len(colours) >= 4
    assert min(contrast(colour, ground) for colour in colours for ground in ("#ffffff", "#111111")) >= 3.5


def test_printing_logs_leaves_their_lines_to_be_read(busy: Run) -> None:
    reading = busy.logs()
    assert str(reading) == str(reading)
    assert "epoch 30/40" in (reading._repr_html_() or "")
    assert [str(line) for line in reading] == [str(line) for line in busy.logs()]


def test_metrics_are_a_short_table_and_stay_a_list(busy: Run) -> None:
    records = busy.metrics()
    lines = str(records).splitlines()
    assert lines[0].split()[:2] == ["step", "steps"]
    assert len(lines) < 25
    assert lines[-1] == f"{len(records):,} records, of which 20 are shown"
    assert records[0]["step"] == 1


def test_what_a_command_beside_a_rank_wrote_is_shown_as_it_was_and_is_still_a_tuple() -> None:
    output = Output(3, "one\ntwo\n", "no\n")
    assert str(output) == "one\ntwo\nno\nexit code 3"
    assert "two" in (output._repr_html_() or "")
    assert output == (3, "one\ntwo\n", "no\n")
    assert decoded(encoded(output), Output) == output
    assert isinstance(decoded(encoded(output), Output), Output)
    assert str(Output(0, "done\n", "")) == "done"
    check_plain(str(Output(0, HOSTILE, HOSTILE)))
    assert "<script" not in (Output(0, HOSTILE, HOSTILE)._repr_html_() or "")


def test_roles_are_a_table_as_status_shows_them() -> None:
    roles = Roles([RoleStatus("features", (0, 1), ("node1",), {"ready": 1, "starting": 1}, 2)])
    assert [line.split() for line in str(roles).splitlines()] == [
        ["ROLE", "RANKS", "NODES", "STATE", "RESTARTS"],
        ["features", "2", "node1", "1", "of", "2", "ready,", "1", "starting", "2"],
    ]
    assert "features" in (roles._repr_html_() or "")
    assert decoded(encoded(roles), Roles) == roles
    assert isinstance(decoded(encoded(roles), Roles), Roles)
    assert str(Roles()) == "no roles: this run has a single program"


def test_copied_points_are_shown_per_tracker_and_stay_a_dict() -> None:
    counts = Tracked({"tensorboard": 1234, "mlflow": 0})
    assert str(counts) == "tensorboard: 1,234 points\nmlflow: up to date"
    assert "1,234" in (counts._repr_html_() or "")
    assert counts == {"tensorboard": 1234, "mlflow": 0}


def test_hostile_text_is_plain_text_in_a_notebook(fabricate: Callable[..., RunDir]) -> None:
    files = {**ended([{"time": 1e6, "step": 1, HOSTILE: 1.0}], 1), "attempts/0/logs/rank_00000.out": HOSTILE}
    run = Run(fabricate("cora-20260102-030405-00a1", files).path)
    for value in (Runs([run]), run, run.status(), run.why(), run.metrics(), run.logs()):
        html = value._repr_html_() or ""
        check_plain(html)
        assert "<script" not in html
        check_plain(str(value))


def test_a_run_that_was_removed_is_shown_with_the_reason(tmp_path: Path) -> None:
    gone = Run(tmp_path / "cora-20260102-030405-00a1")
    assert "cannot read" in (gone._repr_html_() or "")
    assert str(gone) == gone.id
    assert "cannot read" in str(Runs([gone]))


def test_a_traceback_ends_with_the_hint_here_and_from_another_machine() -> None:
    error = ConfigError("jobs/x.toml: no such key", "did you mean lr?")
    far = decoded(encoded(error), ClusterctlError)
    for one in (error, far):
        assert traceback.format_exception(one)[-1] == "hint: did you mean lr?\n"
    assert not hasattr(ConfigError("no hint"), "__notes__")


# What `wait` shows.


class Kept:
    """A place for a line."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.ended = 0

    def __call__(self, line: str, ended: bool) -> None:
        self.ended += ended
        self.lines += [line] * (not ended)


def test_a_line_of_progress_is_shown_once_until_it_changes() -> None:
    kept = Kept()
    line = drawer.Line(kept)
    going = status("cora-20260102-030404-00a1", State.TRAINING, metrics=TRAINING)
    line.update("a")
    line.update("a")
    line.update("b\x1b[2J")
    line.end()
    assert (kept.lines, kept.ended) == (["a", "b"], 1)
    assert "epoch 1/20  step 130/2600  loss 0.5123" in drawer.line_of(going)
    done = status("cora-20260102-030404-00a1", State.FINISHED, metrics=FINISHED)
    assert " finished  epoch 20/20" in drawer.line_of(done)


def test_waiting_shows_progress_only_if_it_is_wanted(
    fabricate: Callable[..., RunDir], capsys: pytest.CaptureFixture[str]
) -> None:
    run = Run(fabricate("cora-20260102-030405-00a1", ended(falling(0.5))).path)
    assert run.wait().state is State.FINISHED
    assert run.wait(progress=False).state is State.FINISHED
    assert capsys.readouterr() == ("", "")
    assert run.wait(progress=True).state is State.FINISHED
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert f"{run.id}  finished" in err


def test_waiting_with_progress_raises_what_waiting_raises(
    fabricate: Callable[..., RunDir], capsys: pytest.CaptureFixture[str]
) -> None:
    run = Run(fabricate("cora-20260102-030405-00a1", ended(falling(0.5), 1)).path)
    with pytest.raises(clusterctl.RunFailed):
        run.wait(progress=True)
    assert f"{run.id}  failed" in capsys.readouterr().err


@dataclass
class Waiting:
    """A run that ends after `waits` waits; each takes no time."""

    waits: int
    id: str = "x"
    place: None = None
    asked: list[float | None] = field(default_factory=list)

    def status(self) -> str:
        return f"{len(self.asked)} asked"

    def wait(self, timeout: float | None) -> str:
        self.asked.append(timeout)
        if len(self.asked) < self.waits:
            raise clusterctl.WaitTimedOut("not yet", "clusterctl status x")
        return "over"


def test_a_wait_with_progress_is_several_and_keeps_its_timeout(capsys: pytest.CaptureFixture[str]) -> None:
    patient = Waiting(4)
    assert waited(patient, patient.wait, None, True) == "over"
    assert (len(patient.asked), None in patient.asked) == (4, False)
    assert capsys.readouterr().err.splitlines() == ["0 asked", "1 asked", "2 asked", "3 asked", "over"]
    hurried = Waiting(10**9)
    with pytest.raises(TimeoutError, match="x has not ended after 0.2 s"):
        waited(hurried, hurried.wait, 0.2, True)
    assert max(one for one in hurried.asked if one is not None) <= 0.2

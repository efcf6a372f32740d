"""`report` of a sweep and of several runs, from the command line."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.made_runs import ended, falling, write_sweep
from support.mistake import CONFIG, NOT_FOUND, USAGE, Desk, check_message

import clusterctl

SWEEP = "fit-20260102-030405-00a1"
ONE, TWO = "one-20260102-030405-00a1", "two-20260102-030405-00a1"
RUN_AND_LIST = """
import json, sys
from clusterctl.launcher.cli import run
assert run(sys.argv[1:]) == 0
print(json.dumps(sorted(sys.modules)), file=sys.stderr)
"""


@pytest.fixture(autouse=True)
def runs(desk: Desk, fabricate) -> None:
    """A sweep of three runs, and two others."""
    for place in range(3):
        fabricate(f"{SWEEP}.{place}", ended(falling(place / 10, val_auc=place / 5)))
    write_sweep(desk.runs, SWEEP, [{"train.lr": rate} for rate in ("1e-3", "1e-2", "1e-1")])
    for run in (ONE, TWO):
        fabricate(run, ended(falling(0.5)))


def test_the_report_of_a_sweep_goes_into_its_directory(desk: Desk) -> None:
    code, out, err = desk.type("report fit")
    assert (code, err) == (0, "")
    assert Path(out.strip()) == desk.runs / ".sweeps" / SWEEP / "report.html"
    assert "<dt>highest val AUC</dt><dd>0.4000</dd>" in Path(out.strip()).read_text()
    code, out, err = desk.type(f"report {SWEEP} --metric loss --output -")
    assert (code, err) == (0, "")
    assert "<dt>lowest loss</dt><dd>0.0000</dd>" in out
    assert desk.type(f"report {SWEEP}.1")[1].strip() == str(desk.runs / f"{SWEEP}.1" / "report.html")


def test_open_starts_the_browser_of_this_machine(desk: Desk, tmp_path: Path) -> None:
    browser, seen = tmp_path / "browser", tmp_path / "seen"
    browser.write_text(f'#!/bin/sh\nprintf %s "$1" > {seen}\n')
    browser.chmod(0o755)

    def browsers(command: str | None) -> None:
        desk.set(BROWSER=command, PATH="/nowhere", DISPLAY=None, WAYLAND_DISPLAY=None)
        for name, fresh in (("_tryorder", None), ("_browsers", {})):  # the module looks only once in a process
            desk.patch.setattr(f"webbrowser.{name}", fresh)

    browsers(f"{browser} %s")
    code, out, err = desk.type(("report", "one", "--output", "a b.html", "--open"))
    assert (code, out, err) == (0, "a b.html\n", "")
    assert seen.read_text() == Path("a b.html").resolve().as_uri()
    browsers(None)
    code, out, err = desk.type("report one --output other.html --open")
    check_message(err, "--open: no browser on this machine", "BROWSER")
    assert (code, out, Path("other.html").exists()) == (USAGE, "", False)


def test_a_report_from_python_is_the_same_file(desk: Desk) -> None:
    path = clusterctl.report("one", "two", output="both.html")
    assert "<h2>What differs</h2>" in path.read_text()
    assert clusterctl.report("fit") == desk.runs / ".sweeps" / SWEEP / "report.html"
    assert clusterctl.report(clusterctl.find("one")) == desk.runs / ONE / "report.html"
    for wrong, message in (((), "no run named"), (("one", "one"), "run named twice"), (("fit", "one"), "is a sweep")):
        with pytest.raises(clusterctl.UsageError, match=message):
            clusterctl.report(*wrong, output="x.html")
    far = replace(clusterctl.find("one"), place=SimpleNamespace(name="hpc"))
    with pytest.raises(clusterctl.HostError) as error:
        clusterctl.report(far)
    assert error.value.hint == f"in a terminal: clusterctl report {ONE} --cluster hpc"
    assert not Path("x.html").exists()


def test_the_report_of_several_runs_goes_to_output(desk: Desk) -> None:
    code, out, err = desk.type(f"report one two {SWEEP}.2 --output both.html")
    assert (code, out, err) == (0, "both.html\n", "")
    assert "<h1>3 runs of one, two, fit</h1>" in Path("both.html").read_text()


def test_a_run_that_cannot_be_read_is_named_and_does_not_hide_the_others(desk: Desk) -> None:
    (desk.runs / ONE / "run.json").write_text("{")
    code, out, err = desk.type("report one two --output both.html")
    assert (code, out) == (0, "both.html\n")
    assert err.startswith("warning: cannot read ")
    assert ONE in Path("both.html").read_text()


@pytest.mark.parametrize(
    ("typed", "code", "message", "hint"),
    [
        ("report", USAGE, "missing argument 'RUN|SWEEP...'", "--help"),
        ("report one two", USAGE, "a report on several runs needs --output", "--output report.html"),
        (f"report one two {ONE} --output x.html", USAGE, f"run named twice: {ONE}", "once"),
        ("report one fit --output x.html", USAGE, f"{SWEEP} is a sweep", f"{SWEEP}.0"),
        ("report fit fit --output x.html", USAGE, f"{SWEEP} is a sweep", f"{SWEEP}.0"),
        ("report one --metric loss", USAGE, "--metric needs several runs", "leave it out"),
        ("report fit --metric los", USAGE, "no value of los in these runs", "did you mean loss?"),
        ("report fit --metric x", USAGE, "no value of x in these runs", "one of loss, step, val_auc"),
        ("report one --output - --open", USAGE, "--open needs a file", "--output -"),
        (("report", "fit", "--metric", ""), USAGE, "no value of", "one of loss"),
        ("report fit --metric \x1b[2J", USAGE, "no value of", "one of loss"),
        ("report one nothing --output x.html", NOT_FOUND, "no run named: nothing", "clusterctl status"),
        ("report one two --output nowhere/x.html", USAGE, "no such folder: nowhere", "mkdir"),
        ("report one two --output .", USAGE, "is a folder: .", "report.html"),
    ],
)
def test_a_mistake_is_reported_and_nothing_is_written(
    desk: Desk, typed: str, code: int, message: str, hint: str
) -> None:
    found, out, err = desk.type(typed)
    check_message(err, message, hint)
    assert (found, out, list(Path().glob("*.html"))) == (code, "", [])


@pytest.mark.parametrize("content", ["", "{", '{"schema_version": 1, "created": 1, "runs": []}', '{"runs": [[1]]}'])
def test_a_damaged_sweep_is_an_error(desk: Desk, content: str) -> None:
    (desk.runs / ".sweeps" / SWEEP / "sweep.json").write_text(content)
    code, out, err = desk.type("report fit")
    assert (code, out) == (CONFIG, "")
    check_message(err, "cannot read ", f"its runs can still be named: {SWEEP}.0")


def test_no_heavy_modules_are_loaded(desk: Desk) -> None:
    words = [sys.executable, "-c", RUN_AND_LIST, "report", "fit"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    modules = set(json.loads(done.stderr.splitlines()[-1]))
    assert not modules & {"torch", "numpy", "submitit", "textual"}

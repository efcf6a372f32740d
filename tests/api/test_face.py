"""`import clusterctl`: what it loads, its public names, and its types."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

import clusterctl

ROOT = Path(__file__).resolve().parents[2]
HEAVY = {
    "torch",
    "submitit",
    "click",
    "rich",
    "textual",
    "numpy",
    "dataclasses",
    "subprocess",
    "typing",
    "importlib.metadata",
}


def python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_importing_clusterctl_loads_only_the_package_itself() -> None:
    before = set(python("import sys; print(*sys.modules)").split())
    added = set(python("import sys, clusterctl; dir(clusterctl); print(*sys.modules)").split()) - before
    assert {name for name in added if name.startswith("clusterctl")} == {"clusterctl"}
    assert not added & HEAVY


def test_every_public_name_exists_and_is_documented() -> None:
    assert sorted([*clusterctl.__all__, "__version__"]) == sorted(dir(clusterctl))
    for name in clusterctl.__all__:
        assert getattr(clusterctl, name).__doc__, name
    with pytest.raises(AttributeError, match="no attribute 'submitt'"):
        clusterctl.submitt  # type: ignore[attr-defined]  # noqa: B018


def test_the_guide_names_the_function_of_each_command_or_why_it_has_none() -> None:
    """The table and the paragraph below it name every command, and the table every function."""
    guide = (ROOT / "docs" / "guides" / "from-python.md").read_text()
    rows = re.findall(r"^\| (.+) \| (.+) \|$", guide.partition("## ")[0], re.MULTILINE)[1:]
    (without,) = re.findall(r"^These stay in the terminal: .*?(?=\n\n)", guide, re.MULTILINE | re.DOTALL)

    program = "from clusterctl.launcher.cli import clusterctl as top; import click\n"
    program += "def names(of, above=''):\n"
    program += "    for name, command in ((one, of.get_command(None, one)) for one in of.list_commands(None)):\n"
    program += "        yield from names(command, name + ' ') if isinstance(command, click.Group) else [above + name]\n"
    program += "print(*names(top), sep='\\n')"
    commands = set(python(program).splitlines())
    assert len(commands) > 30
    typed = [" ".join(re.findall(r"`(.*?)`", left)) for left, _ in rows]
    in_table = {command for command in commands if re.search(rf"\b{command}\b", " ".join(typed))}
    left_out = {*re.findall(r"`([a-z]+(?: [a-z]+)?)`", without)}
    assert in_table & left_out == {"attach"}  # without a command it is a screen
    unnamed = {one for one in commands - in_table - left_out if one.split()[0] not in left_out}
    assert unnamed == set()
    assert {one for one in left_out if not any(f"{command} ".startswith(f"{one} ") for command in commands)} == set()

    named = " ".join(right for _, right in rows)
    functions = {name for name in clusterctl.__all__ if inspect.isfunction(getattr(clusterctl, name))}
    for name in functions - {"find", "submit_function"}:  # to look a run up; has a section of its own
        assert re.search(rf"`{name}\b", named), name
    for name in re.findall(r"`run\.(\w+)", named):
        assert hasattr(clusterctl.Run, name), name
    for name in re.findall(r"`(\w+)[`(]", named):
        assert name in clusterctl.__all__, name


_TRAIN = """error: python -m clusterctl.workloads.NAME is now python -m clusterctl.train NAME
hint: python -m clusterctl.train deep-sage
"""
_PYG = "\nModuleNotFoundError: clusterctl.graph.pyg is now clusterctl.pyg\n"
_ERRORS = ": clusterctl.errors is now part of clusterctl: from clusterctl import ConfigError\n"


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (("-m", "clusterctl.workloads.deep_sage", "job.toml"), _TRAIN),
        (("-c", "import clusterctl.graph.pyg"), _PYG),
        (("-c", "import clusterctl.errors"), _ERRORS),
    ],
)
def test_a_module_that_has_moved_names_its_new_home(words: Sequence[str], shown: str) -> None:
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == shown if words[0] == "-m" else done.stderr.endswith(shown)


def test_an_earlier_name_of_a_programs_functions_works_and_warns_once() -> None:
    code = "import clusterctl.runs as run; run.log(step=1, loss=0.5)\nrun.log(step=2); run.stop_requested()\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    names = ("log", "stop_requested")
    shown = [f"FutureWarning: clusterctl.runs.{name} is now clusterctl.program.{name}" for name in names]
    assert [line.partition(": ")[2] for line in done.stderr.splitlines()] == shown


@pytest.mark.parametrize(
    "first", ["import clusterctl", "import clusterctl.runs", "from clusterctl.shared.record.files import read_json"]
)
def test_runs_is_a_function_and_a_module_whatever_was_imported_first(first: str) -> None:
    code = f"""
{first}
import clusterctl
assert clusterctl.runs(cluster="local", name="no such run") == []
clusterctl.runs.log(step=1, loss=0.5)
import clusterctl.program
assert clusterctl.runs(cluster="local", name="no such run") == []
assert clusterctl.runs.log is clusterctl.program.log
"""
    assert python(code) == ""


@pytest.mark.long
def test_a_typed_program_is_checked_by_mypy(tmp_path: Path) -> None:
    """mypy --strict finds a wrong keyword and wrong attributes, and nothing else."""
    (tmp_path / "program.py").write_text(
        """import clusterctl
import clusterctl.program

run: clusterctl.Run = clusterctl.submit("cora", overrides={"train.epochs": 5})
try:
    seconds: float = run.wait(timeout=600).record.created
except clusterctl.RunFailed as failure:
    print([str(finding) for finding in failure.diagnosis.findings])
names: list[str] = [one.name for one in clusterctl.runs(state="failed", count=3)]
clusterctl.program.log(step=1, loss=0.5)
script: str = clusterctl.plan("cora").script
clusterctl.runs(stages="failed")
run.statuss()
clusterctl.submitt("cora")
"""
    )
    cache = ROOT / ".mypy_cache" / "programs"
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--cache-dir", cache, "program.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    errors = [line.partition(": error: ")[::2] for line in done.stdout.splitlines() if ": error: " in line]
    assert [place for place, _ in errors] == ["program.py:12", "program.py:13", "program.py:14"], done.stdout
    assert "stages" in errors[0][1]
    assert "statuss" in errors[1][1]
    assert "submitt" in errors[2][1]

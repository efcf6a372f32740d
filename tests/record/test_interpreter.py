"""Python that clusterctl starts for itself imports nothing from the current folder; users' programs still do."""

from __future__ import annotations

import ast
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import clusterctl
from clusterctl.shared.record.interpreter import environment, isolated, of_any_version, with_packages

SOURCE = Path(clusterctl.__file__).parent
CLUSTERCTL = str(Path(sys.executable).with_name("clusterctl"))
SHADOWED = ("json", "torch", "pip", "clusterctl", "typing", "types", "subprocess", "submitit", "random", "signal")
RELATIVE = ["", ".", ":/nowhere", "/nowhere:", ".:..", "/nowhere::/nowhere2", "../hostile"]


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder: each of its modules and packages leaves its name in the file `ran` when it is imported."""
    folder = tmp_path / "hostile"
    folder.mkdir()
    for number, name in enumerate(SHADOWED):
        package = folder / name
        package.mkdir(exist_ok=True)
        module = package / "__init__.py" if number % 2 else folder / f"{name}.py"
        module.write_text(f"open({str(tmp_path / 'ran')!r}, 'a').write('{name} ')\n")
    monkeypatch.chdir(folder)
    return folder


def ran(hostile: Path) -> str:
    """What was imported from the hostile folder."""
    path = hostile.with_name("ran")
    return path.read_text() if path.exists() else ""


@pytest.mark.parametrize("pythonpath", [None, *RELATIVE])
def test_every_way_to_start_python_ignores_the_current_folder(
    hostile: Path, pythonpath: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    if pythonpath is not None:
        monkeypatch.setenv("PYTHONPATH", pythonpath)
    program = "import json, types, random, signal"
    ways = isolated(sys.executable, "-c", program), of_any_version(sys.executable, program)
    for words in (*ways, with_packages(sys.executable, "-m", "json.tool", "--help")):
        subprocess.run(words, env=environment(), stdout=subprocess.DEVNULL, check=True)
    assert ran(hostile) == ""


def test_with_safe_paths_on_already_no_entry_of_the_import_path_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONSAFEPATH", "1")
    monkeypatch.setenv("PYTHONPATH", "/nowhere")
    words = of_any_version(sys.executable, "print(sys.path[0])")
    assert subprocess.run(words, env=environment(), capture_output=True, text=True, check=True).stdout == "/nowhere\n"


@pytest.mark.parametrize("name", ["PYTHONPATH", "PYTHONHOME", "PYTHONUSERBASE", "PYTHONPYCACHEPREFIX"])
def test_only_absolute_folders_are_passed_on(name: str) -> None:
    assert environment({name: ":/a::b:./c:/d e", "OTHER": ":"}) == {name: "/a:/d e", "OTHER": ":"}
    for relative in (":", ".", "", ".:.."):
        assert environment({name: relative}) == {}


@pytest.mark.parametrize(
    ("words", "pythonpath"),
    [
        (("doctor",), ":/nowhere"),
        (("submit", "cora", "--dry-run"), "."),
        (("data", "generate", "taobao", "--root", "/proc/no", "--cluster", "named"), None),
        (("-m", "clusterctl", "nodes"), None),
    ],
)
def test_commands_typed_in_a_hostile_folder_run_none_of_its_code(
    words: tuple[str, ...], pythonpath: str | None, hostile: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.rmtree(hostile / "clusterctl")  # Python itself would import these, before clusterctl can prevent it
    shutil.rmtree(hostile / "types")
    other = tmp_path / "other-python"
    other.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -S "$@"\n')
    other.chmod(0o700)
    folder = tmp_path / "config" / "clusterctl" / "cluster"
    folder.mkdir(parents=True)
    (folder / "named.toml").write_text(f'kind = "emulator"\npython = "{other}"\n')
    for name in ("CONFIG", "STATE", "CACHE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    monkeypatch.setenv("CLUSTERCTL_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("CLUSTERCTL_CLUSTER", "named")
    monkeypatch.delenv("PYTHONPATH", raising=False)
    if pythonpath is not None:
        monkeypatch.setenv("PYTHONPATH", pythonpath)
    program = [sys.executable] if words[0] == "-m" else [CLUSTERCTL]
    done = subprocess.run([*program, *words], capture_output=True, text=True, check=False)
    assert ran(hostile) == "", done
    assert "Traceback" not in done.stderr


def test_the_background_request_of_completion_imports_nothing_from_here(
    hostile: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from clusterctl.launcher.api import completions
    from clusterctl.launcher.remote import ssh

    started: list[subprocess.Popen[bytes]] = []
    popen = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda *a, **k: started.append(popen(*a, **k)) or started[-1])
    monkeypatch.setenv("PYTHONPATH", ":/nowhere")
    monkeypatch.setenv("XDG_CACHE_HOME", str(hostile.parent / "cache"))
    monkeypatch.setattr(ssh, "socket_of", lambda _: hostile)  # a connection is open
    assert completions.far_names("no-such-cluster", "host") == []
    started[0].wait(60)
    assert ran(hostile) == ""


def test_a_task_imports_its_own_modules_before_those_of_the_project(
    hostile: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{SOURCE.parent}:{hostile}")
    words = [sys.executable, "-u", str(SOURCE / "shared" / "node" / "__main__.py"), str(tmp_path / "no-run")]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert "no run.json in" in done.stderr
    assert ran(hostile) == ""


def test_users_programs_import_from_their_folder(tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__main__.py").write_text("import beside; print(beside.__file__)")
    (tmp_path / "beside.py").touch()
    assert "PYTHONSAFEPATH" not in environment({})
    words = [sys.executable, "-m", "package"]
    done = subprocess.run(words, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(tmp_path / "beside.py")


FLAGS = {"-m", "-c", "-I", "-E"}
OTHER_PROGRAMS = {"sh", "bash", "git"}
STARTERS = {"isolated", "with_packages", "of_any_version"}
# Places that need none of them, and why.
ALLOWED = {
    "__init__.py": "what `python -m` sets while it looks for a module",
    "launcher/checks/interpreters.py": "a hint, and options for `of_any_version`",
    "launcher/config/script_resolution.py": "words of the user's login shell",
    "launcher/containers/build.py": "inside an image that is being built",
    "launcher/containers/enter.py": "words of sh",
    "launcher/emulator/install.py": "what identifies an installation",
    "launcher/api/init.py": "the user's first program",
    "launcher/api/submitting/start.py": "the user's program, by the Python of the run",
    "launcher/cli/submit.py": "an option of sbatch",
    "launcher/submission/git.py": "options of git",
    "launcher/submission/environments.py": "options for `with_packages`",
    "launcher/submission/plan.py": "a program started by its path, with -E",
    "launcher/remote/install.py": "imports nothing of clusterctl, and uses -I",
    "shared/node/launch_command.py": "options of the users' launchers",
    "shared/record/interpreter.py": "these functions",
}


def starts_of_python() -> Iterator[str]:
    """Every file with a command line, outside calls of STARTERS, that has `sys.executable` or a flag of Python."""
    for path in sorted(SOURCE.rglob("*.py")):
        text = path.read_text()
        if not any(f'"{flag}"' in text for flag in FLAGS) and "sys.executable" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") not in {*STARTERS, "option"}:
                parts = node.args
            elif isinstance(node, ast.List | ast.Tuple):
                parts = node.elts
            else:
                continue
            words = [part.value if isinstance(part, ast.Constant) else ast.unparse(part) for part in parts]
            own = next((number for number, word in enumerate(words) if word in OTHER_PROGRAMS), len(words))
            if FLAGS & {*words[:own]} or (isinstance(node, ast.List | ast.Tuple) and "sys.executable" in words):
                yield f"{path.relative_to(SOURCE)}"


def test_python_is_started_in_one_place() -> None:
    assert {*starts_of_python()} == {*ALLOWED}


def test_shell_scripts_start_no_python_of_their_own() -> None:
    for path in sorted(SOURCE.rglob("*.sh")):
        lines = [line for line in path.read_text().splitlines() if not line.lstrip().startswith("#")]
        assert not [line for line in lines if "python -" in line or "python3 -" in line or '"$python" -' in line], path

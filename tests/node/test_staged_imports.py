"""Imports from copies: a program sees the same as without them."""

from __future__ import annotations

import _testimportmultiple  # a native module that nothing else imports
import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.environments import make_environment

from clusterctl.launcher.submission.module_archives import archive_folder
from clusterctl.shared.node.staging import fill


class Program:
    """A run with a working directory and packages, and Python on a node that has copies of both."""

    def __init__(self, folder: Path) -> None:
        self.attempt, self.copies = folder / "x" / "attempts" / "0", folder / "copies"
        self.work = self.attempt.parents[1] / "work"
        self.work.mkdir(parents=True)
        self.packages = folder / "packages"
        self.packages.mkdir()

    def write(self, files: dict[str, str], folder: Path | None = None) -> None:
        for name, text in files.items():
            path = (folder or self.work) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def stage(self) -> None:
        self.attempt.mkdir(parents=True)
        pairs = []
        for original in (self.work, self.packages):
            archive = self.copies.with_name(f"{original.name}.tar")
            archive_folder(archive, original)
            pairs.append((str(original), str(archive)))
        fill(self.copies, self.attempt, pairs)

    def run(self, *words: str, python: Path | str = sys.executable) -> subprocess.CompletedProcess[str]:
        path = f"{self.copies}/imports:{self.work}:{self.packages}"
        environment = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": ""}
        return subprocess.run(
            [python, *words], cwd=self.work, env=environment, capture_output=True, text=True, check=False
        )

    def output(self, line: str) -> Any:
        """The JSON that the program prints."""
        done = self.run("-c", f"import json\n{line}")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def came_from(self, module: str) -> str:
        """The value of WHERE in the module that was imported."""
        return str(self.output(f"import {module} as m; print(json.dumps(m.WHERE))"))


@pytest.fixture
def program(tmp_path: Path) -> Program:
    return Program(tmp_path)


def relabel(folder: Path, text: str) -> None:
    """Replace 'original' in the copies by `text`, and keep their times."""
    for path in folder.rglob("*.py"):
        if path.parent.name != "imports":
            times = path.stat()
            path.write_text(path.read_text().replace("original", text))
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


MODULE = "WHERE = 'original'\n"


def test_modules_come_from_the_copy_and_keep_their_paths(program: Program) -> None:
    program.write({"train.py": "import a.b\n" + SHOW, "a/__init__.py": "", "a/b.py": MODULE, "a/data.txt": "here"})
    program.stage()
    relabel(program.copies, "the copy")
    done = program.run("train.py")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "program": str(program.work / "train.py"),
        "where": "the copy",
        "file": str(program.work / "a" / "b.py"),
        "path": [str(program.work / "a")],
        "data": "here",
        "resource": "here",
        "modules": ["b"],
        "source": "WHERE = 'the copy'\n",
    }
    assert not list(program.work.rglob("*.pyc"))
    assert len(list(program.copies.rglob("b.*.pyc"))) == 1


SHOW = """
import json, pkgutil
from importlib import resources
from pathlib import Path
print(json.dumps({
    "program": __file__,
    "where": a.b.WHERE,
    "file": a.b.__file__,
    "path": list(a.__path__),
    "data": Path(a.__file__).with_name("data.txt").read_text(),
    "resource": resources.files(a).joinpath("data.txt").read_text(),
    "modules": [module.name for module in pkgutil.iter_modules(a.__path__)],
    "source": a.b.__loader__.get_source("a.b"),
}))
"""


def test_modules_that_the_run_changed_or_wrote_come_from_its_directory(program: Program) -> None:
    program.write({"changed.py": MODULE, "same.py": MODULE, "removed.py": MODULE})
    program.stage()
    relabel(program.copies, "the copy")
    program.write({"changed.py": "WHERE = 'changed'", "written.py": "WHERE = 'written'"})
    (program.work / "removed.py").unlink()
    found = [program.came_from(name) for name in ("changed", "same", "written")]
    assert found == ["changed", "the copy", "written"]
    assert program.run("-c", "import removed").returncode == 1


def test_modules_missing_from_the_copy_come_from_the_original(program: Program) -> None:
    program.write({"space/inside.py": MODULE, "other.py": MODULE}, program.packages)
    program.stage()
    relabel(program.copies, "the copy")
    program.write({"later.py": MODULE, "space/later.py": MODULE}, program.packages)
    names = ("space.inside", "other", "later", "space.later")
    assert [program.came_from(name) for name in names] == ["the copy", "the copy", "original", "original"]


def test_a_native_module_precedes_its_source_and_comes_from_the_original(program: Program) -> None:
    native = Path(_testimportmultiple.__file__)
    (program.packages / native.name).write_bytes(native.read_bytes())
    name = native.name.partition(".")[0]
    program.write({f"{name}.py": MODULE}, program.packages)
    program.stage()
    assert (program.copies / "1" / native.name).stat().st_size == 0
    found = program.output(
        f"import sys; sys.modules.pop('{name}', None); import {name} as m; print(json.dumps(m.__file__))"
    )
    assert found == str(program.packages / native.name)


def test_the_environments_sitecustomize_runs_too(program: Program) -> None:
    program.write({"sitecustomize.py": "import sys; sys.own = 1"}, program.packages)
    program.write({"a.py": MODULE})
    program.stage()
    relabel(program.copies, "the copy")
    found = program.output(
        "import sys, sitecustomize, a; print(json.dumps([sys.own, sitecustomize.__file__, a.WHERE]))"
    )
    assert found == [1, str(program.packages / "sitecustomize.py"), "the copy"]


def test_an_error_in_sitecustomize_is_reported_as_usual(program: Program) -> None:
    program.write({"sitecustomize.py": "import nowhere"}, program.packages)
    program.stage()
    done = program.run("-c", "import a")
    assert "No module named 'nowhere'" in done.stderr


def test_a_running_program_locks_its_copies(program: Program) -> None:
    program.stage()
    hold = "import sys; print(flush=True); sys.stdin.read()"
    environment = {**os.environ, "PYTHONPATH": f"{program.copies}/imports"}
    words = [sys.executable, "-c", hold]
    with subprocess.Popen(words, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        folder = os.open(program.copies, os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        process.communicate()
    fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(folder)


def test_copies_that_are_being_removed_are_not_used(program: Program) -> None:
    program.write({"a.py": MODULE})
    program.stage()
    relabel(program.copies, "the copy")
    folder = os.open(program.copies, os.O_RDONLY)
    fcntl.flock(folder, fcntl.LOCK_EX)
    assert program.came_from("a") == "original"
    os.close(folder)
    assert program.came_from("a") == "the copy"


def test_another_environment_is_not_affected(program: Program, tmp_path: Path) -> None:
    other = make_environment(tmp_path / "other")
    program.stage()
    done = program.run("-c", "import json, sys; print(sys.prefix, json.__file__)", python=other / "bin" / "python")
    prefix, file = done.stdout.split()
    assert (prefix, file) == (str(other), json.__file__)


def test_an_interpreter_that_is_too_old_imports_the_originals(program: Program) -> None:
    program.write({"a.py": MODULE})
    program.stage()
    relabel(program.copies, "the copy")
    first = program.copies / "imports" / "sitecustomize.py"
    first.write_text("import sys; sys.version_info = (3, 6)\n" + first.read_text())
    (first.parent / "clusterctl_imports.py").write_text("not even a module")
    assert program.came_from("a") == "original"

"""Code: checks of the tasks' Python and its packages, queried without importing them."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

from clusterctl.launcher.checks.surroundings import (
    Check,
    Interpreter,
    ProgramProblem,
    Seen,
    SetupProblem,
    fail,
    ok,
    warn,
)
from clusterctl.launcher.config.program import with_interpreter
from clusterctl.shared.record.files import exists, read_beginning
from clusterctl.shared.record.interpreter import environment, of_any_version

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from clusterctl.launcher.checks.surroundings import Surroundings

OLDEST_PYTHON = (3, 11)
PACKAGES = ("torch",)
VERSION_SECONDS = 10
_FIRST_LINE = 256  # what the kernel reads of it (BINPRM_BUF_SIZE)
PACKAGES_SECONDS = 30  # a package without metadata is imported, perhaps from a slow file system
_ASK_VERSION = "import json, sys; print(json.dumps({'version': sys.version_info[:3]}))"
_ASK_PACKAGES = f"""
import importlib, json, sys
from importlib import metadata, util
packages = {{}}
for name in {PACKAGES!r}:
    try:
        packages[name] = metadata.version(name)
    except metadata.PackageNotFoundError:
        try:
            packages[name] = importlib.import_module(name).__version__
        except Exception:
            packages[name] = ""
pip = util.find_spec("pip") is not None
print(json.dumps({{"version": sys.version_info[:3], "packages": packages, "pip": pip}}))
"""


def find_interpreter(python: str, nodes_are_here: bool) -> Seen:
    """Where `python` is; a bare name is looked up on the nodes' PATH, which may differ from this one."""
    if "/" in python:
        return Seen.at(Path(python), nodes_are_here)
    found = shutil.which(python)
    return Seen(found or python, found is not None, nodes_are_here or found is not None)


def ask_version(seen: Seen) -> Interpreter:
    """Only the version: takes milliseconds, and no time for the running interpreter."""
    if not seen.there:
        return Interpreter(seen)
    if seen.path == sys.executable:
        return Interpreter(seen, sys.version_info[:3])
    return _ask(seen, of_any_version(seen.path, _ASK_VERSION, "-E", "-S"), VERSION_SECONDS)


def ask_packages(seen: Seen) -> Interpreter:
    """The versions of Python and of `PACKAGES`."""
    return _ask(seen, of_any_version(seen.path, _ASK_PACKAGES), PACKAGES_SECONDS) if seen.there else Interpreter(seen)


def _ask(seen: Seen, words: list[str], seconds: float) -> Interpreter:
    try:
        done = subprocess.run(
            words,
            env=environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
            check=False,
        )
        answer = json.loads(done.stdout.splitlines()[-1])
        return Interpreter(seen, tuple(answer["version"]), answer.get("packages"), has_pip=answer.get("pip", True))
    except subprocess.TimeoutExpired:
        return Interpreter(seen, problem=f"no answer within {seconds} s")
    except OSError as error:
        return Interpreter(seen, problem=str(error.strerror))
    except (ValueError, IndexError, KeyError, TypeError):
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        return Interpreter(seen, problem=last)


def find_setup_problem(setup: Sequence[str], of_cluster: int) -> SetupProblem | None:
    """A syntax error in the lines, the first `of_cluster` of which are the cluster's; None if bash finds none."""
    if not setup:
        return None
    environment = {name: value for name, value in os.environ.items() if name not in ("BASH_ENV", "SHELLOPTS")}
    command = ["bash", "-n", "-O", "extglob"]  # files such as bash's own completions switch it on
    try:
        done = subprocess.run(
            command,
            input="".join(f"{line}\n" for line in setup).encode(errors="surrogateescape"),
            capture_output=True,
            timeout=VERSION_SECONDS,
            check=False,
            env=environment | {"LC_ALL": "C"},
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    said = re.search(r"line (\d+): (?:warning: )?(.+)", done.stderr.decode(errors="replace"))
    if said is None:
        return None
    begun = re.search(r"here-document at line (\d+)", said[2])
    number = min(max(int((begun or said)[1]), 1), len(setup))
    text = textwrap.shorten(setup[number - 1], 60, placeholder=" ...")
    return SetupProblem(number, text, said[2], number <= of_cluster)


def find_program_problem(
    argv: Sequence[str], code: Path, project: Path, python: str, nodes_are_here: bool
) -> ProgramProblem | None:
    """Why execve(2) would refuse the file that `argv` begins with; None if it would not, or if that is unknown here.

    A relative path is looked up in `code`, the copy of `project`. A name without a slash is looked up on the nodes'
    PATH, which begins with the folder of `python`: it is not checked.
    """
    if not argv or "/" not in argv[0]:
        return None
    path, typed = code / argv[0], shlex.quote(str(project / argv[0]))
    has_interpreter = with_interpreter(argv) != [*argv]

    def found(problem: str, hint: str = "", certain: bool = True) -> ProgramProblem:
        return ProgramProblem(tuple(argv), f"cannot start {argv[0]}: {problem}", hint, certain)

    if not exists(path):
        certain = nodes_are_here or not argv[0].startswith("/")
        if path.is_symlink():
            return found(f"its link leads nowhere: {path.readlink()}", f"see: ls -l {typed}", certain)
        hint = "paths are relative to the job's `code` folder, by default the current one"
        return (
            found("no such file", f"see: ls -l {shlex.quote(argv[0])}" if argv[0].startswith("/") else hint)
            if certain
            else None
        )
    if path.is_dir():
        return found("it is a folder", "name the program in it; a Python package starts with: python -m PACKAGE")
    try:
        start = read_beginning(path, _FIRST_LINE)
    except (OSError, ValueError):  # programs need not be readable
        start = b"\0"
    first, rest = start.partition(b"\n")[::2]
    words = os.fsdecode(first[2:]).split()
    if start.startswith(b"\xef\xbb\xbf#!"):
        return found("it begins with a byte order mark, not with #!", f"sed -i '1s/^\\xEF\\xBB\\xBF//' {typed}")
    if not start.startswith(b"#!") and b"\0" not in start:
        example = f"its first line must name its interpreter, for example: #!/bin/bash; see: head -1 {typed}"
        return found("it does not begin with #!", "" if has_interpreter else example)
    if start.startswith(b"#!"):
        if first.endswith(b"\r") and (rest or len(start) < _FIRST_LINE):
            return found("its lines end in \\r\\n, as on Windows", f"sed -i 's/\\r$//' {typed}")
        another = "" if has_interpreter else f"name another one in its first line; see: head -1 {typed}"
        if not words:
            return found("no interpreter after #!", another)
        if not exists(code / words[0]):
            return found(f"no such interpreter: {words[0]}", another, nodes_are_here)
        by_name = words[1] if words[0].endswith("/env") and len(words) > 1 else ""
        if re.fullmatch(r"[^-=/][^=/]*", by_name) and not (
            shutil.which(by_name) or exists(Path(python).parent / by_name)
        ):
            return found(f"its interpreter is not on PATH: {by_name}", another, nodes_are_here)
    if not os.access(path, os.X_OK):
        return found("it is not executable", "" if has_interpreter else f"chmod +x {typed}")
    return None


def interpreter_rules(found: Surroundings) -> Iterator[Check]:
    interpreter = found.interpreter
    if interpreter is None:
        return
    path, version = interpreter.seen.path, ".".join(map(str, interpreter.version))
    bad = warn if found.cluster.setup else fail  # setup lines may provide it on the nodes
    if not interpreter.seen.there and not interpreter.seen.visible:
        if found.login_node:
            yield warn("tasks", f"not on this machine: {path}", "the nodes must have it; it was not checked")
    elif not interpreter.seen.there:
        yield bad("tasks", f"no such interpreter: {path}", "set `python` in the cluster file")
    elif not interpreter.version:
        problem = f"does not run as Python: {path}: {interpreter.problem}"
        yield bad("tasks", problem, "set `python` in the cluster file")
    else:
        if interpreter.version < OLDEST_PYTHON:
            yield bad("tasks", f"{path} is Python {version}", "set `python` in the cluster file to 3.11 or later")
        for name, installed in (interpreter.packages or {}).items():
            if installed:
                yield ok(name, f"{installed} in {path}")
            else:
                message = f"{path} has no torch: only jobs with workload `command` run without it"
                needed = map(requirement, ("torch", "torch_geometric", "numpy", "scipy"))  # clusterctl itself travels
                install = shlex.join([path, "-m", "pip", "install", *needed])
                pip = "" if interpreter.has_pip else f"{shlex.join([path, '-m', 'ensurepip'])} && "
                yield warn(name, message, f"{pip}{install}")


def program_rules(found: Surroundings) -> Iterator[Check]:
    programs = found.programs
    if wrong := found.node_setup_problem:
        hint = "each line of `node_setup` must be complete; put longer texts into a script of your project"
        yield fail("node_setup", f"node_setup line {wrong.line}: {wrong.text}: {wrong.problem}", hint)
    if wrong := found.setup_problem:
        hint = f"correct that line of `setup` in the {'cluster' if wrong.of_cluster else 'job'} file"
        yield fail("setup", f"setup line {wrong.line}: {wrong.text}: {wrong.problem}", hint)
    if programs is None:
        return
    if found.login_node:
        yield ok("programs", str(programs))
    for path in programs.sourced:
        if not path.startswith("/"):
            hint = "setup lines run in the run's directory: use an absolute path"
            yield fail("setup", f"setup: relative path: {path}", hint)
        elif found.cluster.nodes_are_here and not exists(Path(path)):
            yield fail("setup", f"setup: no such file: {path}", "see `setup` in the cluster and job files")
    if found.activation and not (programs.named or programs.selecting or programs.in_image):
        message = f"{programs}, not from the environment active in your shell"
        setting = f"setup = {json.dumps([found.activation], ensure_ascii=False)}"
        yield warn("programs", message, f"to use your shell's: `{setting}`")


def requirement(package: str) -> str:
    """clusterctl's requirement for `package`, in pip's syntax."""
    from importlib import metadata  # 10 ms

    try:
        requires = metadata.requires("clusterctl") or ()
    except metadata.PackageNotFoundError:  # a source folder that is not installed
        return package
    lines = [line.partition(";")[0].strip() for line in requires]
    named = {re.split(r"[^\w.-]", line)[0].replace("-", "_"): line for line in lines}
    return named.get(package, package)

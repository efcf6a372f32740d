"""Builds the Python environments that jobs' lock files ask for: once each, for all runs and submissions.

ENVIRONMENTS/<key>/                 a venv; the key is that of its packages, Python and platform
ENVIRONMENTS/<key>/environment.json what is in it, written last
ENVIRONMENTS/.<key>.lease/          while it is built, in a folder inside; renamed when it is complete
ENVIRONMENTS/.users/<key>           links to the folders of runs that may refer to environments

For a login node without internet, the machine where the command was typed fetches wheels and sends them. It reads its
own lock file, and learns from the login node only for which Python and platform. It starts pip alone, which runs no
code of the packages, since wheels are only downloaded.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import struct
import sys
import tempfile
import time
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusterctl.launcher.config.client_data import client_data
from clusterctl.launcher.config.locks import lock_text, read_pins, require_extras, require_wheels, without_credentials
from clusterctl.launcher.config.shown import SILENT
from clusterctl.launcher.containers.engine import follow
from clusterctl.launcher.containers.wheels import platforms
from clusterctl.launcher.submission.sent_code import Unpacked
from clusterctl.shared.errors import ConfigError, reason
from clusterctl.shared.record.files import exists, open_regular, read_whole, write_json, write_text
from clusterctl.shared.record.interpreter import environment as environment_of_python
from clusterctl.shared.record.interpreter import isolated, with_packages
from clusterctl.shared.record.layout import ENVIRONMENT_RECORD
from clusterctl.shared.record.once import prepared_once
from clusterctl.shared.record.ownership import make_new, make_private, require_own
from clusterctl.shared.record.plain_text import plain
from clusterctl.shared.spec.values import plural

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from clusterctl.launcher.config.environment import Environment, Facts
    from clusterctl.launcher.config.locks import Pins
    from clusterctl.launcher.config.sent import ClientData
    from clusterctl.launcher.config.shown import ProgressListener


_MOST_WORDS = 800  # characters of an installer's explanation
# These would install elsewhere, or refuse to install in an environment that is not active.
_MISLEADING: tuple[str, ...] = (
    "PIP_TARGET",
    "PIP_PREFIX",
    "PIP_ROOT",
    "PIP_USER",
    "PIP_REQUIRE_VIRTUALENV",
    "PIP_PYTHON",
    "PIP_DRY_RUN",
)
_MISLEADING += ("UV_TARGET", "UV_PREFIX", "UV_SYSTEM_PYTHON", "UV_PYTHON", "VIRTUAL_ENV", "CONDA_PREFIX", "PYTHONHOME")
_MINOR = re.compile(r"WARNING:|\[notice\]|Using Python|Checked \d|Found \d|Looking in |Collecting |Downloading ")
_PIP = ("-m", "pip", "--disable-pip-version-check")
_UV_FILES = ("/etc/uv/uv.toml", "~/.config/uv/uv.toml")


def installer_variables() -> dict[str, str]:
    """The environment of pip and uv, without what would make them install elsewhere."""
    return {name: value for name, value in environment_of_python().items() if name not in _MISLEADING}


def pip_of(facts: Facts | None = None) -> list[str]:
    """How to start pip: that of this interpreter or, without one, of that which an environment extends."""
    pips = [with_packages(sys.executable, *_PIP), *([with_packages(facts.base, *_PIP)] if facts else [])]
    for pip in pips:
        if follow([*pip, "--version"], silent, installer_variables())[0] == 0:
            return pip
    message = f"environment: there is neither uv nor pip to build it with: {' or '.join(pip[0] for pip in pips)}"
    raise ConfigError(message, f"{shlex.quote(sys.executable)} -m ensurepip, or install uv")


def has_own_pip_index(pip: Sequence[str], variables: Mapping[str, str]) -> bool:
    """Whether the user or the site has named a package index, such as a mirror, to pip."""
    _, output = follow([*pip, "config", "list"], silent, variables)
    return any(re.match(r"(?:\w+|:env:)\.index-url=", line) for line in output)


def has_own_uv_index(variables: Mapping[str, str]) -> bool:
    """The same for uv."""
    if variables.get("UV_DEFAULT_INDEX") or variables.get("UV_INDEX_URL"):
        return True
    files = (Path(os.path.expanduser(one)) for one in _UV_FILES)  # noqa: PTH111 - total
    named = re.compile(rb"(?m)^\s*(?:index-url\b|default\s*=\s*true)")
    return any(named.search(read_whole(one)) for one in files if exists(one))


def run_installer(
    name: str,
    words: Sequence[str],
    progress: ProgressListener,
    variables: Mapping[str, str],
    wanted: Pins | None = None,
) -> None:
    """Run one step. Raises ConfigError with the program's own words."""

    def output(line: str) -> None:
        progress.output(without_credentials(plain(line)))

    code, last = follow(words, output, variables)
    if code == 0:
        return
    cleaned = [re.sub(r"^[\s×╰│├─▶]+", "", plain(line)).strip() for line in last]
    kept = [line for line in cleaned if line and not _MINOR.match(line)]
    text = without_credentials(" ".join(re.sub(r"^(?i:error):\s*", "", line) for line in kept))
    said = (text if len(text) <= _MOST_WORDS else f"{text[:_MOST_WORDS]} ...") or f"exit code {code}"
    what = f"environment: {name} refuses {wanted.file}: {said}" if wanted else f"environment: {name}: {said}"
    again = "uv lock"
    if wanted and not wanted.complete:
        again = f"uv pip compile requirements.in --output-file {wanted.file}"
    hint = f"is it complete, and its index reachable? to lock it again: {again}"
    if re.search(r"(?i)no space left|disk quota", said):
        hint = "see: df -h"
    raise ConfigError(what, hint)


def silent(_: str) -> None:
    return


_HEAD = struct.Struct(">HQ")  # before each file: the lengths of its name and of its content
_PIECE = 2**18
_WHEEL = re.compile(r"[A-Za-z0-9_.!+-]+\.whl")
_MOST_TEXT = 200


def receive(environment: Environment, client: ClientData, folder: Path, progress: ProgressListener) -> None:
    """Fill the new `folder` with the wheels of `environment`, from the machine where the command was typed."""
    assert environment.facts
    progress.begin("receiving the wheels from the machine where the command was typed")
    facts = {"libc": environment.facts.libc, "markers": dict(environment.facts.markers)}
    stream = Unpacked(client.ask({"wheels": str(environment.lock), **facts}))
    make_new(folder)
    while head := b"".join(stream.read(_HEAD.size)):
        length, size = _HEAD.unpack(head)
        name = b"".join(stream.read(length)).decode(errors="replace")
        if not name:
            return
        if not _WHEEL.fullmatch(name):
            raise ConfigError(f"environment: not a wheel: {name!r}", "submit again")
        with (folder / name).open("xb") as file:
            for piece in stream.read(size):
                file.write(piece)
                progress.advance(len(piece))


def fetched(lock: Path, question: dict[str, Any], progress: ProgressListener) -> Iterator[bytes]:
    """The pieces of the answer to `receive`: the wheels of this machine's file `lock`. Raises ConfigError."""
    markers, libc = question.get("markers"), re.fullmatch(r"glibc 2\.([0-9]{1,3})", str(question.get("libc")))
    texts = [*markers.items()] if isinstance(markers, dict) else []
    if not all(isinstance(text, str) and len(text) <= _MOST_TEXT for pair in texts for text in pair):
        raise ConfigError("environment: the login node described its Python wrongly", "submit again")
    known = dict(texts)
    python, machine = str(known.get("python_full_version")), str(known.get("platform_machine"))
    if not libc or not re.fullmatch(r"3\.[0-9]{1,3}(\.[0-9]+)?[a-z0-9+]*", python) or not re.fullmatch(r"\w+", machine):
        raise ConfigError("environment: cannot fetch wheels for that login node", "only for Python 3 with glibc")
    wanted = read_pins(lock.name, lock_text(lock), known)
    require_wheels(wanted)
    packer = zlib.compressobj(0)  # wheels are compressed already, and one reader is for these and for code
    with tempfile.TemporaryDirectory(prefix="clusterctl-wheels-") as place:
        folder, requirements = Path(place, "wheels"), Path(place, "requirements.txt")
        make_new(folder)
        write_text(requirements, wanted.requirements)
        variables, pip = installer_variables(), pip_of()
        if wanted.index and not has_own_pip_index(pip, variables):
            variables["PIP_INDEX_URL"] = wanted.index
        progress.begin(f"fetching the wheels of {wanted.file} for Python {python}, glibc 2.{libc[1]} on {machine}")
        words = ["download", "--quiet", "--no-deps", "--only-binary=:all:", "--implementation=cp", "--no-input"]
        version = ".".join(python.split(".")[:2])
        words += [f"--python-version={version}", *(f"--platform={one}" for one in platforms(machine, int(libc[1])))]
        run_installer(
            "pip", [*pip, *words, "--dest", str(folder), "-r", str(requirements)], progress, variables, wanted
        )
        for path in sorted(folder.iterdir()):
            with open_regular(path) as file:
                yield packer.compress(_HEAD.pack(len(path.name.encode()), path.stat().st_size) + path.name.encode())
                while piece := file.read(_PIECE):
                    yield packer.compress(piece)
    yield packer.compress(_HEAD.pack(0, 0)) + packer.flush()


USERS = ".users"
_REQUIREMENTS = "requirements.txt"
# Without internet, an answer should not take minutes.
_IMPATIENT = {"PIP_RETRIES": "1", "PIP_DEFAULT_TIMEOUT": "8", "UV_HTTP_TIMEOUT": "8", "UV_HTTP_RETRIES": "1"}


def build(environment: Environment, runs: Path, progress: ProgressListener = SILENT) -> None:
    """Build `environment` unless it exists, for runs in the folder `runs`; others that ask meanwhile wait.

    Raises ConfigError with the installer's words, and then leaves nothing behind.
    """
    root = environment.folder.parent
    hint = "choose a folder of your own for `environments` in the cluster file"
    try:
        make_private(root, hint)
        # `clean` looks there before it removes an environment.
        link = make_private(root / USERS) / hashlib.sha256(os.fsencode(runs)).hexdigest()[:20]
        if not link.is_symlink():
            aside = link.with_name(f".{link.name}.{os.urandom(4).hex()}")
            aside.symlink_to(runs)
            aside.rename(link)
        if environment.is_built:
            require_own(environment.folder, hint)
            os.utime(environment.folder)  # recent ones are kept although no run refers to them yet (api/clean.py)
            return
        prepared_once(
            environment.folder,
            lambda building: _build(environment, building, progress),
            whole=lambda folder: exists(folder / ENVIRONMENT_RECORD),
        )
    except OSError as error:
        message = f"environment: cannot build {environment.lock.name} in {root}: {reason(error)}"
        raise ConfigError(message, "is the disk full? see: df -h") from error


def _build(environment: Environment, building: Path, progress: ProgressListener) -> None:
    wanted, facts = environment.wanted, environment.facts
    if not wanted or not facts:  # of an earlier run
        raise ConfigError(f"environment: {environment.folder} was removed", "give its lock file again")
    begun = time.time()
    count = plural(len(wanted.packages), "package")
    progress.begin(f"building the environment of {wanted.file}: {count}, Python {facts.python}")
    words = isolated(facts.base, "-m", "venv", "--without-pip", str(building))
    run_installer("venv", words, progress, environment_of_python())
    python = str(building / "bin" / "python")
    requirements, wheels = building / _REQUIREMENTS, building / "wheels"
    write_text(requirements, wanted.requirements)
    client = client_data()
    try:
        installer = _install(environment, python, requirements, progress, _IMPATIENT if client else {})
    except ConfigError:
        if client is None:
            raise
        # Perhaps this machine has no internet: then the one where the command was typed gets the wheels.
        receive(environment, client, wheels, progress)
        write_text(requirements, wanted.offline(wheels))
        installer = _install(environment, python, requirements, progress, wheels=wheels)
        shutil.rmtree(wheels)
    requirements.unlink()
    # Their bytecode, with the final names; ranks could not write it at the same time.
    jobs = str(min(4, os.cpu_count() or 1))
    words = ["-q", "-j", jobs, "-s", str(building), "-p", str(environment.folder), str(building / "lib")]
    follow(isolated(python, "-m", "compileall", *words), silent, environment_of_python())
    for path in (building / "pyvenv.cfg", *(building / "bin").iterdir()):
        if path.is_file() and not path.is_symlink():
            content = path.read_bytes()
            moved = content.replace(os.fsencode(building), os.fsencode(environment.folder))
            if moved != content:  # programs and `activate` contain the path of the environment
                path.write_bytes(moved)
    for folder in (building, building / "bin"):
        folder.chmod(0o700)  # the batch script requires it, whatever the umask allows
    record = {
        "lock": wanted.file,
        "python": facts.python,
        "platform": facts.platform,
        "base": facts.base,
        "installer": installer,
        "created": begun,
        "seconds": round(time.time() - begun, 3),
        "packages": {one.name: one.version or without_credentials(one.url) for one in wanted.packages},
    }
    write_json(building / ENVIRONMENT_RECORD, record)


def _install(
    environment: Environment,
    python: str,
    requirements: Path,
    progress: ProgressListener,
    more: Mapping[str, str] = {},
    *,
    wheels: Path | None = None,
) -> str:
    """Install the requirements, by uv where it is, else by pip; returns which. With `wheels`, from that folder only."""
    wanted = environment.wanted
    assert wanted
    variables = {**installer_variables(), **more}
    uv = shutil.which("uv")
    uv = uv if uv and uv.startswith("/") else None  # never one in the current folder
    name = "uv" if uv else "pip"
    if uv:
        variables |= {"UV_PYTHON_DOWNLOADS": "never", "UV_NO_PROGRESS": "1", "NO_COLOR": "1"}
        pip = [uv, "--directory", str(requirements.parent), "pip"]  # not with the settings of a project
        install = [*pip, "install", "--python", python, "--quiet", "--link-mode", "copy"]
        install += ["--index-strategy", "unsafe-best-match"]  # as pip does; hashes decide
        check = [*pip, "check", "--python", python]
    else:
        pip = [*pip_of(environment.facts), "--no-input", "--python", python]
        install = [*pip, "install", "--quiet", "--no-compile", "--no-warn-script-location"]
        check = [*pip, "check"]
    if wheels:
        install += ["--no-index", "--find-links", str(wheels)]
    elif wanted.index and not (has_own_uv_index(variables) if uv else has_own_pip_index(pip, variables)):
        variables["UV_DEFAULT_INDEX" if uv else "PIP_INDEX_URL"] = wanted.index
    install += ["--no-deps", *([] if environment.builds else ["--only-binary", ":all:"])]
    run_installer(name, [*install, "-r", str(requirements)], progress, variables, wanted)
    if not wanted.complete:  # nobody has resolved them: they may lack something
        run_installer(name, check, progress, variables, wanted)
        from importlib.metadata import distributions  # takes 20 ms

        assert environment.facts
        places = [str(one) for one in requirements.parent.glob("lib/python*/site-packages")]
        require_extras(wanted, distributions(path=places), environment.facts.markers)
    return name

"""A mistake and the expected message: a row of the tables in tests/misuse, and the desk on which it is made."""

from __future__ import annotations

import os
import re
import shlex
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from clusterctl.launcher import cli
from clusterctl.launcher.submission import snapshot
from clusterctl.launcher.submission.code_files import CodeFile, package_files

USAGE, CONFIG, SLURM, NOT_FOUND, OTHER = 2, 3, 4, 5, 1
_BIDI = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_MESSAGE = re.compile(r"error: (?P<error>\S.*(?:\n  .*)*)\nhint: (?P<hint>\S.*(?:\n  .*)*)\n")
_BATCHES = re.compile(r"^(?:global batch|memory: about) .*\n", re.MULTILINE)
_SLURM_COMMANDS = ("sbatch", "squeue", "scancel", "scontrol", "srun", "sinfo")


def _first_files(package: Path) -> list[CodeFile]:
    """What is copied of the library where no job gets to import it: hundreds of submissions would copy all of it."""
    return [file for file in package_files(package) if "/" not in file.name]


@dataclass
class Desk:
    """A project folder, an environment and an emulated cluster, in which commands run in this process."""

    folder: Path
    patch: pytest.MonkeyPatch
    capture: pytest.CaptureFixture[bytes]

    def __post_init__(self) -> None:
        for name in ("project", "home", "fakes", "temporary"):
            (self.folder / name).mkdir()
        self.patch.chdir(self.project)
        for name in [name for name in os.environ if name.startswith(("CLUSTERCTL_", "SLURM_", "SBATCH_", "XDG_"))]:
            self.patch.delenv(name)
        self.patch.setenv("CLUSTERCTL_CLUSTER", "local")
        self.patch.setenv("CLUSTERCTL_RUNS", str(self.runs))
        self.patch.setenv("HOME", str(self.folder / "home"))
        self.patch.setenv("XDG_STATE_HOME", str(self.folder / "state"))
        self.patch.setenv("COLUMNS", "200")

    @property
    def project(self) -> Path:
        return self.folder / "project"

    @property
    def runs(self) -> Path:
        return self.folder / "runs"

    def write(self, name: str | Path, content: str | bytes) -> Path:
        path = self.project / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass"))
        return path

    def set(self, **environment: str | None) -> None:
        for name, value in environment.items():
            if value is None:
                self.patch.delenv(name, raising=False)
            else:
                self.patch.setenv(name, value)

    def use_slurm(self, cluster: str = "", **answers: str) -> None:
        """Make the cluster a Slurm whose commands are shell scripts: `answers`; the others print nothing."""
        self.patch.setattr(snapshot, "package_files", _first_files)
        self.write("cluster/site.toml", f'kind = "slurm"\npolling_floor = 0\n{cluster}')
        for command in _SLURM_COMMANDS:
            path = self.folder / "fakes" / command
            path.write_text(f'#!/bin/sh\necho "{command} $*" >>"{self._asked}"\n{answers.get(command, "")}\n')
            path.chmod(0o700)
        self.set(CLUSTERCTL_CLUSTER="site", PATH=f"{self.folder / 'fakes'}:{os.environ['PATH']}")

    def type(self, words: str | Sequence[str], *, batches: bool = False) -> tuple[int, str, str]:
        """Run one command and return its exit code, stdout and stderr, by default without the line on batch sizes."""
        self.capture.readouterr()
        words = shlex.split(words) if isinstance(words, str) else words
        if "--hold" in words:
            self.patch.setattr(snapshot, "package_files", _first_files)
        code = cli.run(words)
        out, err = self.capture.readouterr()
        text = err.decode()
        return code, out.decode(errors="replace"), text if batches else _BATCHES.sub("", text)

    def asked(self, command: str) -> int:
        """How often a command of the fake Slurm was called."""
        lines = self._asked.read_text().splitlines() if self._asked.exists() else []
        return sum(line.startswith(f"{command} ") for line in lines)

    def run_directories(self) -> list[Path]:
        return sorted(path for path in self.runs.glob("[!.]*") if path.is_dir()) if self.runs.is_dir() else []

    def submitted(self) -> list[Path]:
        """The emulator's jobs."""
        return list((self.folder / "state" / "clusterctl" / "emulator" / "jobs").glob("[0-9]*"))

    @property
    def _asked(self) -> Path:
        return self.folder / "asked"


@dataclass(frozen=True, kw_only=True)
class Mistake:
    """A command, its preparation, and what is expected: the exit code, parts of the error and the hint."""

    what: str  # the ID of the test
    typed: str | tuple[str, ...] = "submit ./job.toml"
    code: int
    expected: str  # part of the error
    hint: str
    job: str | bytes | None = None  # the content of job.toml
    files: Mapping[str, str | bytes] = field(default_factory=dict)
    environment: Mapping[str, str | None] = field(default_factory=dict)
    prepare: Callable[[Desk], object] = lambda desk: None

    def make(self, desk: Desk) -> None:
        """Make the mistake on `desk`; check the message, the exit code, and that nothing was submitted."""
        files = dict(self.files) if self.job is None else {"job.toml": self.job, **self.files}
        for name, content in files.items():
            desk.write(name, content)
        desk.set(**self.environment)
        desk.patch.setattr(snapshot, "package_files", _first_files)
        self.prepare(desk)
        before = desk.run_directories()
        code, out, err = desk.type(self.typed)
        check_message(err, self.expected, self.hint)
        assert (code, out) == (self.code, ""), err
        assert desk.run_directories() == before, "a run was left behind"
        assert desk.submitted() == []


def check_message(err: str, expected: str, hint: str) -> None:
    """Check for one `error:` with `expected` in it, one `hint:` with `hint` in it, and no control characters."""
    match = _MESSAGE.fullmatch(err)
    assert match, f"not one error and one hint:\n{err}"
    assert expected in match["error"], err
    assert hint in match["hint"], err
    assert "Traceback" not in err
    assert len(err) < 10_000
    check_plain(err)


def check_plain(text: str) -> None:
    """Check that there are no control characters."""
    control = {c for c in text if c in _BIDI or (unicodedata.category(c) in ("Cc", "Zl", "Zp") and c not in "\n\t")}
    assert not control, sorted(map(hex, map(ord, control)))


def rows(*mistakes: Mistake) -> pytest.MarkDecorator:
    """A decorator that runs the test once per row, with `what` as its ID."""
    assert len({mistake.what for mistake in mistakes}) == len(mistakes)
    return pytest.mark.parametrize("mistake", mistakes, ids=[mistake.what for mistake in mistakes])

"""Runs whose directories are damaged at random: every command reads them without crashing.

A failure shows its seed and the damage: `damaged(seed, folder)` makes the same directory again.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import os
import resource
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import pytest
from support.damage import damaged, healthy, write
from support.mistake import Desk, check_plain

from clusterctl.launcher import cli

GOOD, BAD = "cora-20260101-000000-aaaa", "cora-20260102-000000-bbbb"
MOST_BYTES = 4 << 30
HANGS_SECONDS = 20  # a command takes milliseconds
COMMANDS: tuple[tuple[str, ...], ...] = (
    ("status",),
    ("status", BAD, "-o", "json"),
    ("why", BAD),
    ("logs", BAD, "-t"),
    ("logs", BAD, "--errors"),
    ("monitor", "--once"),
    ("report", BAD, "--output", "-"),
    ("resume", BAD),
    ("rerun", BAD),
    ("diff", GOOD, BAD, "--code"),
)
OF_ALL_RUNS = (("status",), ("monitor", "--once"))  # these show the other runs whatever the damage


class Terminal(io.TextIOWrapper):
    """Escape sequences are only removed on a terminal."""

    def isatty(self) -> bool:
        return True


def address_space() -> int:
    """The address space of this process, in bytes: torch, imported by an earlier test, takes gigabytes of it."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


@contextlib.contextmanager
def limited(*kinds: int) -> Iterator[None]:
    """Limit these resources, so that an endless file does not exhaust the machine."""
    before = {kind: resource.getrlimit(kind) for kind in kinds}
    for kind, (_, hard) in before.items():
        resource.setrlimit(kind, (MOST_BYTES + address_space() * (kind == resource.RLIMIT_AS), hard))
    try:
        yield
    finally:
        for kind, limits in before.items():
            resource.setrlimit(kind, limits)


@contextlib.contextmanager
def enforced_permissions() -> Iterator[None]:
    """Within the block, root too may read only what the mode bits allow."""
    # capget(2) and capset(2), version 3: both capabilities are among the first 32
    libc, header, sets = ctypes.CDLL(None), (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    assert libc.capget(header, sets) == 0
    effective = sets[0]
    sets[0] &= ~0b110  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
    assert libc.capset(header, sets) == 0
    try:
        yield
    finally:
        sets[0] = effective
        assert libc.capset(header, sets) == 0


def typed(words: tuple[str, ...]) -> tuple[int, str, str]:
    out, err = Terminal(io.BytesIO(), "utf-8"), Terminal(io.BytesIO(), "utf-8")
    signal.alarm(HANGS_SECONDS)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = cli.run(words)
    finally:
        signal.alarm(0)
    for stream in (out, err):
        stream.flush()
    return code, *(stream.buffer.getvalue().decode() for stream in (out, err))  # type: ignore[attr-defined]


def fail_after_timeout(number: int, frame: FrameType | None) -> None:
    raise AssertionError(f"no end after {HANGS_SECONDS} s")


@pytest.fixture
def runs(desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A runs folder with one healthy run; the cluster has no jobs and accepts none."""
    desk.use_slurm(sbatch="echo 'sbatch: error: no' >&2; exit 1", sacct="exit 1")
    monkeypatch.setenv("TERM", "dumb")
    before = signal.signal(signal.SIGALRM, fail_after_timeout)
    in_memory = Path("/dev/shm")  # to write and remove 40 files so often takes a disk twice as long as the test
    with tempfile.TemporaryDirectory(dir=in_memory if os.access(in_memory, os.W_OK) else tmp_path) as folder:
        desk.set(CLUSTERCTL_RUNS=folder)
        write(Path(folder, GOOD), healthy(Path(folder), GOOD))
        yield Path(folder)
    signal.signal(signal.SIGALRM, before)


def remove(run: Path) -> None:
    run.chmod(0o700)
    for folder, names, _ in os.walk(run):
        for path in (Path(folder, name) for name in names):
            if not path.is_symlink():
                path.chmod(0o700)
    shutil.rmtree(run)


SEEDS = [
    range(250),
    pytest.param(range(250, 700), marks=pytest.mark.long),
    pytest.param(range(700, 20_000), marks=pytest.mark.faults),
]


@pytest.mark.parametrize("seeds", SEEDS, ids=str)
def test_no_damage_crashes_a_command_or_reaches_the_terminal(runs: Path, seeds: range) -> None:
    for seed in seeds:
        words, done = COMMANDS[seed % len(COMMANDS)], damaged(seed, runs / BAD)
        with enforced_permissions(), limited(resource.RLIMIT_AS, resource.RLIMIT_FSIZE):
            try:
                check(words, *typed(words))
            except Exception as error:
                raise AssertionError(f"{' '.join(words)}: {done}") from error
        remove(runs / BAD)


def check(words: tuple[str, ...], code: int, out: str, err: str) -> None:
    check_plain(out + err)
    assert "Traceback" not in err
    if words in OF_ALL_RUNS:
        assert code == 0, err
        assert GOOD in out
    else:  # run.json cannot be read, or a system call fails
        assert code in (0, 1, 2, 3, 4, 5), err
        assert code == 0 or err.startswith(("error: ", "warning: ")), err

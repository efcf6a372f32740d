"""Environments are built once, completely or not at all, whoever asks, refuses or dies meanwhile."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from support.environments import make_index, make_wheel, requirements

from clusterctl.launcher.api.clean import YOUNG_SECONDS, remove_unused, unused_environments
from clusterctl.launcher.config.environment import Environment, environments_folder, facts_of
from clusterctl.launcher.config.locks import read_pins
from clusterctl.launcher.config.shown import SILENT
from clusterctl.launcher.submission.environments import build, fetched
from clusterctl.shared.errors import ConfigError
from clusterctl.shared.record.layout import ENVIRONMENT_RECORD
from clusterctl.shared.spec import Cluster

BUILDER = """
import sys
from pathlib import Path
from clusterctl.launcher.config.environment import Environment, facts_of
from clusterctl.launcher.config.locks import read_pins
from clusterctl.launcher.config.shown import ProgressListener
from clusterctl.launcher.submission.environments import build

class Shown(ProgressListener):
    def begin(self, text, total=None):
        print(text, flush=True)

lock, folder = map(Path, sys.argv[1:])
facts = facts_of(sys.executable)
pins = read_pins(lock.name, lock.read_text(), facts.markers)
build(Environment(folder, lock, pins, facts), folder.parent, Shown())
"""


@pytest.fixture
def lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Pinned requirements of two packages in an index of their own."""
    monkeypatch.setenv("PATH", "/usr/bin:/bin")  # without uv, whose cache is the user's
    alpha = make_wheel(tmp_path, "alpha", "1.0", ["beta"], script="alpha-version")
    wheels = [alpha, make_wheel(tmp_path, "beta", "2.0")]
    path = tmp_path / "requirements.txt"
    path.write_text(requirements(make_index(tmp_path / "simple", wheels), wheels))
    return path


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "runs" / ".environments"
    shutil.rmtree(tmp_path / "runs", ignore_errors=True)


def environment(lock: Path, folder: Path) -> Environment:
    facts = facts_of(sys.executable)
    return Environment(folder, lock, read_pins(lock.name, lock.read_text(), facts.markers), facts)


def begin(lock: Path, folder: Path, stdout: int = subprocess.DEVNULL) -> subprocess.Popen[str]:
    words = [sys.executable, "-c", BUILDER, str(lock), str(folder)]
    return subprocess.Popen(words, stdout=stdout, text=True, start_new_session=True)


def works(folder: Path) -> bool:
    """Whether modules and programs of the environment work where it is."""
    shown = subprocess.run([folder / "bin/alpha-version"], capture_output=True, text=True, check=False).stdout
    words = [folder / "bin/python", "-c", "import alpha, beta, sys; print(sys.prefix)"]
    return (
        shown == "1.0\n" and subprocess.run(words, capture_output=True, text=True, check=False).stdout == f"{folder}\n"
    )


def everything_in(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def test_an_environment_works_in_its_place_and_keeps_no_password(lock: Path, root: Path) -> None:
    lock.write_text(f"--extra-index-url http://me:hidden-word@127.0.0.1:9/simple\n{lock.read_text()}")
    wanted = environment(lock, root / f"{1:020x}")
    build(wanted, root.parent)
    assert works(wanted.folder)
    found = everything_in(wanted.folder)
    assert b"hidden-word" not in found
    assert b".lease/" not in found  # where it was built
    assert not list(root.glob(".*.lease"))
    assert list((wanted.folder / "lib").rglob("alpha.*.pyc"))
    assert json.loads((wanted.folder / ENVIRONMENT_RECORD).read_text())["packages"] == {"alpha": "1.0", "beta": "2.0"}


def uv_in(folder: Path) -> Path:
    """Install a fake uv that logs its arguments; return the path of the log."""
    folder.mkdir()
    (folder / "uv").write_text(f'#!/bin/sh\necho "$@" >> {folder}/words\n')
    (folder / "uv").chmod(0o755)
    return folder / "words"


@pytest.mark.parametrize("builds", [False, True])
def test_uv_installs_where_it_is_and_builds_nothing_unless_the_job_allows_it(
    lock: Path, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, builds: bool
) -> None:
    words = uv_in(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{words.parent}:/usr/bin:/bin")
    build(replace(environment(lock, root / f"{1:020x}"), builds=builds), root.parent)
    install = words.read_text().splitlines()[0]
    assert " pip install " in install
    assert ("--only-binary :all:" in install) != builds


def test_a_uv_in_the_current_folder_is_never_started(
    lock: Path, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = uv_in(tmp_path / "here")
    monkeypatch.chdir(words.parent)
    monkeypatch.setenv("PATH", ".:/usr/bin:/bin")
    build(environment(lock, root / f"{1:020x}"), root.parent)
    assert works(root / f"{1:020x}")
    assert not words.exists()


PLATFORMS = ("manylinux_2_17_x86_64", "manylinux_2_28_x86_64", "manylinux_2_36_x86_64", "manylinux_2_28_aarch64")


@pytest.mark.parametrize(
    ("glibc", "machine", "python", "fetches"),
    [
        ("2.27", "x86_64", "3.11.9", "manylinux_2_17_x86_64"),
        ("2.12", "x86_64", "3.11.9", ""),
        *(
            pytest.param(*more, marks=pytest.mark.long)  # each starts pip three times
            for more in (
                ("2.28", "x86_64", "3.11.9", "manylinux_2_28_x86_64"),
                ("2.35", "x86_64", "3.11.9", "manylinux_2_28_x86_64"),
                ("2.39", "aarch64", "3.11.9", "manylinux_2_28_aarch64"),
                ("2.17", "aarch64", "3.11.9", ""),
                ("2.36", "x86_64", "3.12.1", ""),
            )
        ),
    ],
)
def test_a_login_node_gets_the_newest_wheel_that_its_glibc_machine_and_python_can_load(
    tmp_path: Path, glibc: str, machine: str, python: str, fetches: str
) -> None:
    wheels = [make_wheel(tmp_path, "alpha", "1.0", tag=f"cp311-cp311-{one}") for one in PLATFORMS]
    lock = tmp_path / "requirements.txt"
    lock.write_text(requirements(make_index(tmp_path / "simple", wheels), wheels))
    markers = facts_of(sys.executable).markers | {"python_full_version": python, "platform_machine": machine}
    question = {"libc": f"glibc {glibc}", "markers": markers}
    if not fetches:
        with pytest.raises(ConfigError, match=r"alpha==1\.0"):
            b"".join(fetched(lock, question, SILENT))
        return
    answer = zlib.decompress(b"".join(fetched(lock, question, SILENT)))
    assert re.findall(rb"alpha-1\.0-cp311-cp311-(\w+)\.whl", answer) == [fetches.encode()]


def test_the_key_of_the_cluster_decides_where_environments_are_built(tmp_path: Path) -> None:
    runs, disk = tmp_path / "runs", tmp_path / "disk"
    among_runs = environments_folder(Cluster(name="c", runs=str(runs)))
    on_disk = environments_folder(Cluster(name="c", runs=str(runs), environments=str(disk)))
    assert (among_runs.is_relative_to(runs), on_disk.is_relative_to(disk)) == (True, True)


@pytest.mark.long
def test_an_extra_without_its_packages_is_refused_and_leaves_nothing(lock: Path, root: Path, tmp_path: Path) -> None:
    """pip installs it without a word, and the program fails when it imports them."""
    wheel = make_wheel(tmp_path, "fast", "1.0", ["beta; extra == 'all'\nProvides-Extra: all"])
    index = make_index(tmp_path / "another", [wheel])
    lock.write_text(f"--index-url {index}\nfast[all]==1.0\n")
    with pytest.raises(ConfigError) as caught:
        build(environment(lock, root / f"{1:020x}"), root.parent)
    assert caught.value.message == "environment: requirements.txt lacks beta (for fast[all])"
    assert [path.name for path in root.iterdir()] == [".users"]


@pytest.mark.parametrize(
    ("before", "after", "named"),
    [
        (r"beta==2\.0", "beta==9.0", "beta==9.0"),  # there is no such version
        (r"sha256:\w+", f"sha256:{'0' * 64}", "alpha"),  # other files
        (r"beta==2\.0.*", "", "beta"),  # which alpha needs
    ],
    ids=["version", "hash", "incomplete"],
)
@pytest.mark.long
def test_a_refusal_has_the_installers_words_and_leaves_nothing(
    lock: Path, root: Path, before: str, after: str, named: str
) -> None:
    text = re.sub(before, after, lock.read_text(), flags=re.DOTALL)
    lock.write_text(text)
    with pytest.raises(ConfigError) as caught:
        build(environment(lock, root / f"{1:020x}"), root.parent)
    assert "pip refuses requirements.txt" in caught.value.message
    assert named in caught.value.message
    assert [path.name for path in root.iterdir()] == [".users"]


@pytest.mark.long
def test_of_fifty_that_ask_at_once_one_builds(lock: Path, root: Path) -> None:
    folder = root / f"{1:020x}"
    asking = [begin(lock, folder, subprocess.PIPE) for _ in range(50)]
    shown = "".join(one.communicate(timeout=600)[0] for one in asking)
    assert [one.returncode for one in asking] == [0] * 50
    assert shown.count("building") == 1
    assert works(folder)
    assert {path.name for path in root.iterdir()} == {".users", folder.name}


@pytest.mark.parametrize("whole_group", [True, False], ids=["with-pip", "alone"])
@pytest.mark.long
def test_a_builder_killed_at_any_point_leaves_nothing_that_is_used(lock: Path, root: Path, whole_group: bool) -> None:
    begun = time.monotonic()
    begin(lock, root / f"{99:020x}").wait(600)
    seconds = time.monotonic() - begun
    unfinished = []
    for number in range(8):
        folder = root / f"{number:020x}"
        builder = begin(lock, folder)
        time.sleep(seconds * (number + 1) / 9)
        with suppress(ProcessLookupError):
            (os.killpg if whole_group else os.kill)(builder.pid, signal.SIGKILL)
        builder.wait()
        unfinished += [] if folder.exists() else [folder]
        assert not folder.exists() or works(folder)
    time.sleep(0 if whole_group else seconds)  # pip goes on for a moment, without anybody to use what it makes
    assert unfinished
    assert not any(folder.exists() for folder in unfinished)
    (left := begin(lock, unfinished[-1])).wait(600)  # waits until the dead builder's lease is stale
    assert left.returncode == 0
    assert works(unfinished[-1])


def test_clean_removes_environments_that_no_run_refers_to(tmp_path: Path) -> None:
    """Of several folders of runs that share a folder of environments, each one's runs count."""
    root, old = tmp_path / "shared", time.time() - 2 * YOUNG_SECONDS
    used, linked, unused = (root / f"{number:020x}" for number in range(3))
    left = root / f".{unused.name}.lease"
    for folder in (used, linked, unused, left, root / "my-own", root / ".users"):
        folder.mkdir(parents=True)
    for number, (folder, runs) in enumerate(((used, tmp_path / "one"), (linked, tmp_path / "two"))):
        (runs / "run").mkdir(parents=True)
        (runs / "run" / "venv").symlink_to(Path("/elsewhere") / folder.name if number else folder)  # the same disk
        (root / ".users" / str(number)).symlink_to(runs)
    assert unused_environments([root]) == []  # a submission may be about to use it
    for folder in root.iterdir():
        os.utime(folder, (old, old))
    found = unused_environments([root])
    assert {one.path for one in found} == {unused, left}
    also = unused_environments([root], without={tmp_path / "one" / "run"})
    assert {one.path for one in also} == {unused, left, used}
    assert all(map(remove_unused, found))
    assert {path.name for path in root.iterdir()} == {used.name, linked.name, "my-own", ".users"}


def test_nothing_is_removed_if_some_runs_cannot_be_read(tmp_path: Path) -> None:
    root = tmp_path / "shared"
    (root / ".users").mkdir(parents=True)
    (root / f"{1:020x}").mkdir()
    os.utime(root / f"{1:020x}", (0, 0))
    (tmp_path / "loop").symlink_to("loop")
    (root / ".users" / "0").symlink_to(tmp_path / "loop")
    with pytest.raises(ConfigError, match="cannot read"):
        unused_environments([root])

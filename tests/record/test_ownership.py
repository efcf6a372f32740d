"""Folders whose content is executed: made by this user, and changed by nobody else."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from clusterctl.shared.errors import ClusterctlError, ConfigError
from clusterctl.shared.record.layout import SweepDir, code_folder, own_place
from clusterctl.shared.record.ownership import (
    NotOurs,
    make_new,
    make_private,
    make_runs_folder,
    open_own,
    open_parent,
    shared_parent,
)

SOMEONE = OTHERS = 4242
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A folder that other users can reach, unlike pytest's."""
    with tempfile.TemporaryDirectory(prefix="clusterctl-test-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def link(place: Path) -> None:
    place.with_name("elsewhere").mkdir()
    place.symlink_to("elsewhere")


def theirs(place: Path, *, opened: bool = False) -> None:
    place.mkdir(mode=0o700)
    os.chown(place, SOMEONE, -1)
    place.chmod(0o777 if opened else 0o755)


def their_link(place: Path) -> None:
    link(place)
    os.chown(place, SOMEONE, -1, follow_symlinks=False)


def open_to_a_group(place: Path) -> None:
    place.mkdir()
    place.chmod(0o770)


# What another user, or an accident, may have put in place of a folder of ours.
HOSTILE = [
    pytest.param(lambda place: place.symlink_to("nowhere"), id="dangling link"),
    pytest.param(os.mkfifo, id="named pipe"),
    pytest.param(Path.touch, id="file"),
    pytest.param(open_to_a_group, id="group-writable"),
    pytest.param(lambda place: theirs(place, opened=True), id="foreign and open", marks=as_root),
    pytest.param(theirs, id="foreign", marks=as_root),
    pytest.param(their_link, id="foreign link", marks=as_root),
]
Plant = Callable[[Path], None]


@pytest.mark.parametrize("plant", HOSTILE)
def test_a_folder_that_others_could_have_made_is_not_used(tmp_path: Path, plant: Plant) -> None:
    place = tmp_path / "place"
    plant(place)
    with pytest.raises((ClusterctlError, OSError)):
        make_private(place)
    with pytest.raises(FileExistsError):
        make_new(place)


def test_a_folder_of_ours_and_a_link_of_ours_to_one_are_used(tmp_path: Path) -> None:
    place = make_private(tmp_path / "a" / "b" / "c")
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
    assert make_private(place) == place
    link(tmp_path / "mine")
    assert make_private(tmp_path / "mine").is_dir()
    with pytest.raises(FileExistsError):
        make_new(tmp_path / "mine")


def test_missing_parents_are_writable_by_nobody_else_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        make_private(tmp_path / "a" / "b")
    finally:
        os.umask(before)
    assert (tmp_path / "a").stat().st_mode & 0o022 == 0


@pytest.mark.parametrize("umask", [0o002, 0o077])
def test_a_runs_folder_that_anyone_can_exchange_is_refused(tmp_path: Path, umask: int) -> None:
    public = tmp_path / "public" / "deeper"
    public.mkdir(parents=True)
    public.parent.chmod(0o777)
    before = os.umask(umask)
    try:
        with pytest.raises(NotOurs, match=f"everybody can write to {public.parent}") as caught:
            make_runs_folder(public / "runs")
        assert f"chmod o-w {public.parent}" in caught.value.hint
        link(tmp_path / "runs")  # the path itself looks harmless
        (tmp_path / "runs").unlink()
        (tmp_path / "runs").symlink_to(public)
        with pytest.raises(NotOurs):
            make_runs_folder(tmp_path / "runs")
        public.parent.chmod(0o1777)
        assert make_runs_folder(public / "runs").is_dir()
    finally:
        os.umask(before)


@as_root
def test_a_parent_that_a_group_can_write_to_is_accepted_but_known(tmp_path: Path) -> None:
    shared = tmp_path / "project"
    shared.mkdir()
    shared.chmod(0o2775)
    os.chown(shared, -1, OTHERS)
    runs = make_runs_folder(shared / "me" / "runs")
    assert (open_parent(runs), shared_parent(runs)) == (None, shared)
    shared.chmod(0o3775)
    assert shared_parent(runs) is None


@as_root
def test_a_group_that_cannot_reach_the_parent_does_not_matter(tmp_path: Path) -> None:
    shared = tmp_path / "private" / "shared"
    shared.mkdir(parents=True)
    shared.chmod(0o775)
    os.chown(shared, -1, OTHERS)
    assert shared_parent(shared / "runs") == shared
    shared.parent.chmod(0o700)
    assert shared_parent(shared / "runs") is None


def opened(runs: Path, path: Path) -> bytes:
    with open_own(runs, path) as file:
        return file.read()


@pytest.mark.parametrize("part", ["", "run", "run/submitit", "run/submitit/script"])
@pytest.mark.parametrize("exchange", ["link", "removed", "open", pytest.param("foreign", marks=as_root)])
def test_a_file_is_opened_only_below_folders_of_ours(tmp_path: Path, part: str, exchange: str) -> None:
    runs = tmp_path / "runs"
    script = runs / "run" / "submitit" / "script"
    script.parent.mkdir(parents=True, mode=0o700)
    script.write_text("ours")
    assert opened(runs, script) == b"ours"
    place = runs / part
    if exchange == "open":
        place.chmod(0o770)
    elif exchange == "foreign":
        os.chown(place, SOMEONE, -1)
    else:
        place.rename(tmp_path / "aside")
        if exchange == "link":
            place.symlink_to(tmp_path / "aside")
    if exchange == "link" and not part:  # the runs folder itself may be a link
        assert opened(runs, script) == b"ours"
        return
    with pytest.raises(ConfigError):
        opened(runs, script)


@as_root
def test_users_of_one_runs_folder_have_folders_of_their_own(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    runs.mkdir(mode=0o1777)
    os.chown(runs, SOMEONE, -1)  # as root's folder for an ordinary user
    runs.chmod(0o1777)
    assert code_folder(runs) == runs / ".code-0"
    theirs(runs / ".code-0")  # a name that somebody else has taken
    assert code_folder(runs) == runs / ".code-0-1"
    make_private(code_folder(runs))
    assert code_folder(runs) == runs / ".code-0-1"
    make_private(runs / ".sweeps")  # made by an earlier version
    assert own_place(runs, ".sweeps") == runs / ".sweeps"


@as_root
def test_a_sweep_is_found_in_the_folder_of_the_user_who_owns_its_runs(tmp_path: Path) -> None:
    runs, sweep = tmp_path / "runs", "x-20260102-030405-00a1"
    for name in (f".sweeps/{sweep}", f".sweeps-7/{sweep}", f".sweeps-{SOMEONE}/{sweep}", f"{sweep}.0"):
        (runs / name).mkdir(parents=True)
    runs.chmod(0o1777)
    for name in (f".sweeps-{SOMEONE}/{sweep}", f"{sweep}.0"):
        os.chown(runs / name, SOMEONE, -1)
    assert SweepDir.of(runs, sweep).path == runs / f".sweeps-{SOMEONE}" / sweep
    assert SweepDir.of(runs, sweep).run(0).path == runs / f"{sweep}.0"

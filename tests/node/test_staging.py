"""What a node copies to its local disk before its ranks start, and what it removes."""

from __future__ import annotations

import fcntl
import io
import os
import subprocess
import tarfile
import time
from pathlib import Path

import pytest

from clusterctl.shared.node import staging
from clusterctl.shared.node.staged_imports import read_folders
from clusterctl.shared.node.staging import fill, main, remove_leftovers, unpack


class Node:
    """A node's local disk, and a run with an archive of one folder."""

    def __init__(self, folder: Path) -> None:
        self.disk, self.original, self.archive = folder / "disk", folder / "original", folder / "original.tar"
        self.attempt = folder / "runs" / "x" / "attempts" / "0"
        for path in (self.disk, self.original / "package", self.original / "a-1.dist-info", self.attempt):
            path.mkdir(parents=True)
        (self.original / "package" / "model.py").write_text("NAME = 1\n")
        os.utime(self.original / "package" / "model.py", (1_000_000, 1_000_000))
        with tarfile.open(self.archive, "w") as members:
            for path in sorted(self.original.rglob("*")):
                members.add(path, str(path.relative_to(self.original)), recursive=False)
        self.folder = self.disk / f"{staging.PREFIX}x"
        self.staged = Path(f"{self.folder}.0@n1")

    def stage(self, *words: str) -> None:
        pairs = words or (str(self.original), str(self.archive))
        names = {"CLUSTERCTL_RUN_DIR": self.attempt.parents[1], "CLUSTERCTL_ATTEMPT": "0", "SLURMD_NODENAME": "n1"}
        names |= {"DISK": self.disk}
        folder = f"$DISK/{self.folder.name}"
        main([folder, *pairs], {name: str(value) for name, value in names.items()})

    def left(self) -> list[str]:
        return sorted(path.name for path in self.disk.iterdir())


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_each_folder_is_copied_with_its_times_and_is_private(node: Node) -> None:
    node.stage()
    copy = node.staged / "0" / "package" / "model.py"
    assert (copy.read_text(), copy.stat().st_mtime) == ("NAME = 1\n", 1_000_000)
    assert read_folders(str(node.staged)) == [(str(node.original), str(node.staged / "0"), False)]
    assert (node.staged / "imports" / "sitecustomize.py").is_file()
    assert node.staged.stat().st_mode & 0o077 == 0


def test_the_work_directory_may_change_and_a_folder_has_several_names(node: Node, tmp_path: Path) -> None:
    (work := node.attempt.parents[1] / "work").mkdir()
    (work / "a-1.dist-info").mkdir()
    (tmp_path / "link").symlink_to(node.original)
    (node.original / "lib64").symlink_to("lib")
    node.stage(str(work), str(node.archive), str(tmp_path / "link"), str(node.archive))
    copies = [str(node.staged / number) for number in ("0", "1")]
    assert read_folders(str(node.staged)) == [
        (str(work), copies[0], True),
        (str(tmp_path / "link" / "lib64"), f"{copies[1]}/lib", False),
        (str(tmp_path / "link"), copies[1], False),
        (str(node.original / "lib64"), f"{copies[1]}/lib", False),
        (str(node.original), copies[1], False),
    ]


def test_a_python_without_an_archive_is_not_copied(node: Node) -> None:
    node.stage(str(node.original), str(node.archive), "/usr", str(node.archive.with_name("none.tar")))
    assert len(read_folders(str(node.staged))) == 1


def test_packages_changed_since_the_submission_are_not_copied(node: Node, capfd: pytest.CaptureFixture[str]) -> None:
    (node.original / "a-1.dist-info").rename(node.original / "a-2.dist-info")
    node.stage()
    assert read_folders(str(node.staged)) == []
    assert f"n1 imports from the shared file system: {node.original}/ has changed" in capfd.readouterr().err


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
def test_a_full_disk_is_reported_and_left_clean(node: Node, capfd: pytest.CaptureFixture[str]) -> None:
    with tarfile.open(node.archive, "w") as members:
        member = tarfile.TarInfo("large.py")
        member.size = 2**20
        members.addfile(member, io.BytesIO(bytes(2**20)))
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", node.disk], check=True)
    try:
        node.stage()
        assert node.left() == []
    finally:
        subprocess.run(["umount", node.disk], check=True)
    assert f"cannot copy modules to {node.staged}: No space left on device" in capfd.readouterr().err


def test_a_missing_disk_is_reported(node: Node, capfd: pytest.CaptureFixture[str]) -> None:
    node.disk.rmdir()
    node.stage()
    assert (
        f"n1 imports from the shared file system: cannot copy modules to {node.staged}: No such"
        in capfd.readouterr().err
    )


def test_an_existing_folder_is_left_alone(node: Node, capfd: pytest.CaptureFixture[str]) -> None:
    node.staged.mkdir()
    node.stage()
    assert list(node.staged.iterdir()) == []
    assert "File exists" in capfd.readouterr().err


def test_a_truncated_archive_is_reported_and_leaves_nothing(node: Node, capfd: pytest.CaptureFixture[str]) -> None:
    node.archive.write_bytes(node.archive.read_bytes()[:1100])
    node.stage()
    assert node.left() == []
    assert f"damaged archive: {node.archive}" in capfd.readouterr().err


def test_copies_of_an_ended_run_are_removed_at_the_next_start(node: Node) -> None:
    node.stage()
    remove_leftovers(node.disk)
    assert node.left() == [node.staged.name]  # its ranks are about to start
    (node.attempt / "host.json").write_text('{"attempt": 0, "end": 12}')
    remove_leftovers(node.disk)
    assert node.left() == []


def test_old_copies_of_a_run_without_a_record_are_removed(node: Node) -> None:
    node.stage()
    long_ago = time.time() - 7200
    os.utime(node.staged, (long_ago, long_ago))
    holder = os.open(node.staged, os.O_RDONLY)
    fcntl.flock(holder, fcntl.LOCK_SH)
    remove_leftovers(node.disk)
    assert node.left() == [node.staged.name]  # still in use
    os.close(holder)
    remove_leftovers(node.disk)
    assert node.left() == []


def test_files_and_links_with_the_prefix_are_kept(node: Node) -> None:
    (node.disk / f"{staging.PREFIX}file").touch()
    (node.disk / f"{staging.PREFIX}link").symlink_to(node.original)
    remove_leftovers(node.disk)
    assert len(node.left()) == 2
    assert (node.original / "package" / "model.py").exists()


def test_an_archive_is_read_sequentially_and_only_once(node: Node, tmp_path: Path) -> None:
    os.mkfifo(pipe := tmp_path / "pipe")
    with subprocess.Popen(["cp", node.archive, pipe]):
        assert unpack(str(pipe), tmp_path / "copy", str(node.original)) == ""
    assert (tmp_path / "copy" / "package" / "model.py").exists()


def test_each_attempt_has_its_own_folder(node: Node) -> None:
    node.stage()
    fill(Path(f"{node.folder}.1@n1"), node.attempt, [(str(node.original), str(node.archive))])
    assert len(node.left()) == 2

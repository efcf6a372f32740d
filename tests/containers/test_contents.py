"""Inspecting an image without unpacking it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from clusterctl.launcher.containers.contents import ImageRecord, Unreadable, look_into, record_path, write_record

FILES = {
    "opt/venv/bin/python3.12": "",
    "opt/venv/lib/python3.12/site-packages/torch-2.13.0+cpu.dist-info/METADATA": "",
    "opt/venv/lib/python3.12/site-packages/submitit-1.5.4.dist-info/METADATA": "",
    "etc/environment": "COLOUR=red\nPATH=/x\n",
    "srv/größe -> 数": "x" * 5000,
}


@pytest.fixture
def image(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    for name, text in FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    (root / "opt/venv/bin/python").symlink_to("python3.12")
    command = ["mksquashfs", root, tmp_path / "i.sqsh", "-quiet", "-no-progress"]
    subprocess.run(command, check=True, capture_output=True)
    return tmp_path / "i.sqsh"


def record(image: Path, size: int) -> ImageRecord:
    return ImageRecord(
        name="i", digest="", sqsh="", size=size, source="", created=0, python="3.13", versions={"submitit": "2"}
    )


def test_a_file_listing_shows_interpreter_packages_environment_and_size(image: Path) -> None:
    found = look_into(image)
    assert found
    assert found.minor_of("/opt/venv/bin/python") == "3.12"
    assert found.resolved("/opt/venv/bin/python") in found.links
    assert found.packages == {"torch": "2.13.0+cpu", "submitit": "1.5.4"}
    assert found.environment == {"COLOUR": "red", "PATH": "/x"}
    assert found.unpacked_bytes == 3 * 4096


def test_the_record_is_used_only_if_it_describes_this_file(image: Path) -> None:
    write_record(image, record(image, image.stat().st_size))
    found = look_into(image)
    assert found
    assert (found.minor_of("/opt/venv/bin/python"), found.packages) == ("3.13", {"submitit": "2"})
    write_record(image, record(image, 7))
    assert (other := look_into(image))
    assert other.packages["submitit"] == "1.5.4"
    record_path(image).write_text("{")
    assert (again := look_into(image))
    assert again.packages["submitit"] == "1.5.4"


@pytest.mark.parametrize("shell", ["usr/bin/dash", "bin/busybox"])
@pytest.mark.parametrize(("machine", "known"), [(62, "x86_64"), (183, "aarch64"), (9999, None)])
def test_the_architecture_is_read_from_a_shell(tmp_path: Path, shell: str, machine: int, known: str | None) -> None:
    program = tmp_path / "root" / shell
    program.parent.mkdir(parents=True)
    header = b"\x7fELF\x02\x01\x01".ljust(16, b"\0") + b"\x03\0" + machine.to_bytes(2, "little")
    program.write_bytes(header + bytes(range(256)))
    image = tmp_path / "i.sqsh"
    subprocess.run(["mksquashfs", tmp_path / "root", image, "-quiet", "-no-progress"], check=True, capture_output=True)
    assert (found := look_into(image))
    assert found.machine == known
    write_record(image, record(image, image.stat().st_size))
    assert (found := look_into(image))
    assert (found.machine, found.python) == (known, "3.13")


def test_a_truncated_image_is_reported(image: Path) -> None:
    os.truncate(image, 200)
    with pytest.raises(Unreadable, match=r"\w+ \w+"):
        look_into(image)


def test_without_unsquashfs_nothing_is_known(image: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert look_into(image) is None

"""Importing images: each is imported once, and bad input is refused."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from support.images import Quiet, file, write_archive

from clusterctl.launcher.containers.build import as_engines_write, import_file, import_reference
from clusterctl.launcher.containers.contents import (
    find_image,
    images_in,
    leftovers,
    name_of,
    read_record,
    remove,
    verify,
)
from clusterctl.shared.errors import ClusterctlError, ConfigError, ImageError, NotFoundError, UsageError

# A fake enroot that "imports" by packing a folder into a squashfs, and records its arguments and options.
ENROOT = """#!/bin/sh
echo "$* $ENROOT_SQUASH_OPTIONS" >>"$0.asked"
[ -n "$FAIL" ] && { echo "[ERROR] URL https://registry returned error code: 401 Unauthorized" >&2; exit 1; }
mkdir -p "$0.root/etc" && echo FROM=enroot >"$0.root/etc/environment"
exec mksquashfs "$0.root" "$3" -quiet -no-progress
"""


@pytest.fixture
def enroot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "bin" / "enroot"
    path.parent.mkdir()
    path.write_text(ENROOT)
    path.chmod(0o700)
    monkeypatch.setenv("PATH", f"{path.parent}:/usr/local/bin:/usr/bin:/bin")
    return path


def times_asked(enroot: Path) -> int:
    path = enroot.with_name("enroot.asked")
    return len(path.read_text().splitlines()) if path.exists() else 0


# A fake docker whose daemon has one image, `mine`, with one file.
DOCKER = """#!/bin/sh
case "$*" in
version*) ;;
"image inspect mine") echo '[{"Id": "sha256:abc", "Config": {"Env": ["FROM=docker"]}}]' ;;
"create --network=none mine /bin/sh") echo container ;;
"export container") tar -C "$0.root" -cf - . ;;
"rm container") ;;
*) exit 1 ;;
esac
"""


@pytest.fixture
def docker(enroot: Path) -> None:
    path = enroot.with_name("docker")
    path.write_text(DOCKER)
    path.chmod(0o700)
    (path.parent / "docker.root").mkdir()
    (path.parent / "docker.root" / "x").write_text("1")


@pytest.mark.parametrize("reference", ["mine", "dockerd://mine"])
def test_an_image_that_docker_has_is_taken_from_there(
    reference: str, enroot: Path, docker: None, tmp_path: Path
) -> None:
    made = import_reference(reference, None, tmp_path / "images", Quiet())
    assert made.name == "mine"
    assert made.record is not None
    assert made.record.environment == {"FROM": "docker"}
    assert times_asked(enroot) == 0


def test_an_image_that_docker_lacks_is_fetched_by_enroot(enroot: Path, docker: None, tmp_path: Path) -> None:
    import_reference("yours", None, tmp_path / "images", Quiet())
    assert times_asked(enroot) == 1
    with pytest.raises(ImageError, match="docker has no image yours") as caught:
        import_reference("dockerd://yours", None, tmp_path / "images", Quiet())
    assert caught.value.hint == "see: docker images"
    assert times_asked(enroot) == 1


def test_concurrent_requests_share_one_import(enroot: Path, tmp_path: Path) -> None:
    folder, failures = tmp_path / "images", []

    def submit() -> None:
        try:
            import_reference("nvcr.io#nvidia/pyg:24.11-py3", None, folder, Quiet())
        except ClusterctlError as error:
            failures.append(error)

    threads = [threading.Thread(target=submit) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert times_asked(enroot) == 1
    (image,) = images_in(folder)
    assert image.name == "nvcr.io-nvidia-pyg-24.11-py3"
    assert image.record is not None
    assert image.record.environment == {"FROM": "enroot"}
    assert verify(image) == []
    assert {path.suffix for path in folder.iterdir()} == {".sqsh", ".json"}


def test_the_registry_is_contacted_again_only_on_request(enroot: Path, tmp_path: Path) -> None:
    for fresh, times in ((False, 1), (False, 1), (True, 2)):
        import_reference("python:3.11-slim", None, tmp_path / "images", Quiet(), fresh=fresh)
        assert times_asked(enroot) == times
    import_reference("python:3.12-slim", "python-3.11-slim", tmp_path / "images", Quiet())
    record = read_record(tmp_path / "images" / "python-3.11-slim.sqsh")
    assert record is not None
    assert record.source == "python:3.12-slim"


def test_enroot_gets_zstd_and_the_reference_and_no_credentials(enroot: Path, tmp_path: Path) -> None:
    import_reference("me@ghcr.io#a/b:1", None, tmp_path / "images", Quiet())
    words = enroot.with_name("enroot.asked").read_text()
    assert "docker://me@ghcr.io#a/b:1" in words
    assert "-comp zstd" in words


def test_a_refused_import_leaves_nothing_behind(enroot: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAIL", "1")
    with pytest.raises(ImageError, match="enroot import failed: the registry refused access") as caught:
        import_reference("nvcr.io#nvidia/pyg:24.11-py3", None, tmp_path / "images", Quiet())
    assert "401" in caught.value.message
    assert "enroot/.credentials" in caught.value.hint
    assert list((tmp_path / "images").iterdir()) == []


@pytest.mark.parametrize(
    "reference",
    ["python::3", "nvcr.io/#x", "Python", "a b", "image.sqsh", "dockerd://-x", "podman://", "dockerd://a b"],
)
def test_an_invalid_reference_contacts_no_registry(reference: str, enroot: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        import_reference(reference, None, tmp_path / "images", Quiet())
    assert times_asked(enroot) == 0


def test_references_are_converted_to_names() -> None:
    digest = "a" * 64
    assert name_of(f"user@nvcr.io#nvidia/pyg@sha256:{digest}") == f"user-nvcr.io-nvidia-pyg-{'a' * 12}"
    assert name_of("localhost:5000#a/b:1") == "localhost-5000-a-b-1"
    assert as_engines_write("python:3.11-slim") == "docker.io/library/python:3.11-slim"
    assert as_engines_write("pyg/pyg:1") == "docker.io/pyg/pyg:1"
    assert as_engines_write("me@nvcr.io#nvidia/pyg:1") == "nvcr.io/nvidia/pyg:1"
    assert as_engines_write(f"ghcr.io#a/b@sha256:{digest}") == f"ghcr.io/a/b@sha256:{digest}"


def test_a_missing_or_unknown_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no such file"):
        import_file(tmp_path / "gone.tar", None, tmp_path / "images", Quiet())
    (tmp_path / "text.tar").write_text("hello")
    with pytest.raises(ImageError, match="text.tar: bad archive"):
        import_file(tmp_path / "text.tar", None, tmp_path / "images", Quiet())
    (tmp_path / "cut.sqsh").write_bytes(b"hsqs" + b"\0" * 10)
    with pytest.raises(ImageError, match="unsquashfs failed"):
        import_file(tmp_path / "cut.sqsh", None, tmp_path / "images", Quiet())
    assert images_in(tmp_path / "images") == []


@pytest.mark.parametrize("name", ["a,b", "a:b", "a+b", "../x", ".hidden", "-x", "a b", "100%", "a\x1b[31m"])
def test_an_image_name_that_flags_cannot_express_is_refused(name: str, tmp_path: Path) -> None:
    archive = write_archive(tmp_path / "made.tar", [[file("x")]])
    with pytest.raises(UsageError, match="invalid image name"):
        import_file(archive, name, tmp_path / "images", Quiet())


def test_a_full_disk_is_reported_and_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "bin" / "mksquashfs"
    fake.parent.mkdir()
    fake.write_text("#!/bin/sh\necho 'Write failed because No space left on device' >&2\nexit 1\n")
    fake.chmod(0o700)
    archive = write_archive(tmp_path / "made.tar", [[file("x", b"1" * 500_000)]])
    monkeypatch.setenv("PATH", f"{fake.parent}:/usr/bin:/bin")
    with pytest.raises(ImageError, match="no space left for the image") as caught:
        import_file(archive, None, tmp_path / "images", Quiet())
    assert "df -h" in caught.value.hint
    fake.write_text("#!/bin/sh\necho 'mksquashfs: -tar is an invalid option' >&2\nexit 1\n")
    with pytest.raises(ImageError, match="mksquashfs is too old"):
        import_file(archive, None, tmp_path / "images", Quiet())
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ImageError, match="mksquashfs is not on PATH"):
        import_file(archive, None, tmp_path / "images", Quiet())
    assert list((tmp_path / "images").iterdir()) == []


def test_a_changed_image_fails_verification(tmp_path: Path) -> None:
    archive = write_archive(tmp_path / "made.tar", [[file("x", b"1")]])
    image = import_file(archive, None, tmp_path / "images", Quiet())
    assert verify(image) == []
    content = image.path.read_bytes()
    image.path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert verify(image) == ["its checksum differs from its record"]
    image.path.write_bytes(content + b"x")
    assert "bytes, but its record has" in verify(image)[0]
    for size in (50, 200, len(content)):
        image.path.write_bytes(content[:size])
        (problem,) = verify(replace(image, record=None))
        assert problem.startswith(f"truncated: {size} of " if size < len(content) else "no record")
    image.path.write_text("no squashfs")
    assert verify(image) == ["not a squashfs"]


def test_a_damaged_record_is_reported_and_the_other_images_are_listed(enroot: Path, tmp_path: Path) -> None:
    folder = tmp_path / "images"
    for name in ("one", "two"):
        import_reference("python:3.11-slim", name, folder, Quiet())
    (folder / "one.json").write_text("{")
    one, two = images_in(folder)
    assert (one.record, two.problem) == (None, "")
    assert "damaged" in verify(one)[0]
    import_reference("python:3.11-slim", "one", folder, Quiet())
    assert verify(find_image(folder, "one")) == []


def test_leftovers_of_killed_builds_are_found_once_they_are_old(tmp_path: Path) -> None:
    folder = tmp_path / "images"
    image = import_file(write_archive(tmp_path / "made.tar", [[file("x")]]), None, folder, Quiet())
    (folder / ".made-abc").mkdir()
    (folder / ".made-abc" / "image.sqsh").write_text("half")
    (folder / "orphan.json").write_text("{}")
    now = image.path.stat().st_mtime
    assert leftovers(folder, now + 60) == [folder / "orphan.json"]
    assert leftovers(folder, now + 7200) == [folder / ".made-abc", folder / "orphan.json"]
    for path in [*leftovers(folder, now + 7200), image.path]:
        remove(path)
    assert list(folder.iterdir()) == []


def test_an_unknown_name_suggests_the_nearest_one(tmp_path: Path) -> None:
    import_file(write_archive(tmp_path / "made.tar", [[file("x")]]), "clusterctl-cpu", tmp_path / "images", Quiet())
    with pytest.raises(NotFoundError) as caught:
        find_image(tmp_path / "images", "clusterctl-cup")
    assert caught.value.hint == "did you mean clusterctl-cpu?"


def test_links_in_a_groups_image_folder_lead_nowhere(tmp_path: Path) -> None:
    """A member of the group may have planted them under every name that an import can be expected to use."""
    folder, victim, home = tmp_path / "images", tmp_path / "victim", tmp_path / "home"
    folder.mkdir(mode=0o2775)
    home.mkdir()
    victim.write_text("precious")
    (home / "precious").write_text("precious")
    first = int(Path("/proc/loadavg").read_text().split()[-1])
    for name in ("x.json", "x.sqsh", *(f".x.json.{number}" for number in range(first, first + 1000))):
        (folder / name).symlink_to(victim)
    (folder / ".dangling").symlink_to("nowhere")
    (folder / ".home").symlink_to(home)
    import_file(write_archive(tmp_path / "x.tar", [[file("a", b"1")]]), "x", folder, Quiet())
    assert verify(find_image(folder, "x")) == []
    for left in leftovers(folder, time.time() + 10**6):
        remove(left)
    assert sorted(path.name for path in folder.iterdir()) == ["x.json", "x.sqsh"]
    assert (victim.read_text(), (home / "precious").read_text()) == ("precious", "precious")

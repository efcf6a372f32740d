"""The converter compared with independent ones: the same root file by file, from docker and OCI archives."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest
from support.images import (
    CRAFTED,
    OURS,
    Described,
    Layer,
    Quiet,
    described,
    device,
    file,
    folder,
    hardlink,
    symlink,
    write_archive,
)  # fmt: skip

from clusterctl.launcher.containers.archive import ImageConfig, open_archive
from clusterctl.launcher.containers.build import import_file
from clusterctl.launcher.containers.engine import Engine
from clusterctl.launcher.containers.squashfs import configuration_files
from clusterctl.shared.errors import ImageError

pytestmark = pytest.mark.skipif(shutil.which("mksquashfs") is None, reason="no squashfs-tools")


def converted(archive: Path, place: Path) -> tuple[Described, Path]:
    """The archive as a .sqsh, and its contents as unpacked by unsquashfs."""
    image = import_file(archive, "made", place / "images", Quiet())
    root = place / "unpacked"
    done = subprocess.run(
        ["unsquashfs", "-q", "-n", "-d", root, image.path], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return described(root), root


def layered_by_tar(archive: Path, place: Path) -> Described:
    """The root as GNU tar and rm make it, layer by layer, without any of the converter's code."""
    root, outer = place / "by-tar", place / "outer"
    for place_of in (root, outer):
        place_of.mkdir()
    subprocess.run(["tar", "-xf", archive, "-C", outer], check=True)
    (manifest,) = json.loads((outer / "manifest.json").read_text())
    for layer in manifest["Layers"]:
        layer = outer / layer
        names = subprocess.run(["tar", "--quoting-style=literal", "-tf", layer], capture_output=True, check=True).stdout
        for name in names.split(b"\n"):
            parent, _, last = name.rstrip(b"/").rpartition(b"/")
            if last == b".wh..wh..opq":
                for inside in (root / os.fsdecode(parent)).glob("*"):
                    subprocess.run(["rm", "-rf", inside], check=True)
            elif last.startswith(b".wh."):
                subprocess.run(["rm", "-rf", root / os.fsdecode(parent) / os.fsdecode(last[4:])], check=True)
        for name in names.split(b"\n"):  # tar does not replace a folder with a file, or vice versa
            there = root / os.fsdecode(name.rstrip(b"/"))
            if name and os.path.lexists(there) and there.is_dir() != name.endswith(b"/"):
                subprocess.run(["rm", "-rf", there], check=True)
        left_out = ("--exclude=.wh.*", "--exclude=dev/null")
        subprocess.run(["tar", "-xpf", layer, "-C", root, "--no-same-owner", *left_out], check=True)
    return described(root)


def without_ours(found: Described) -> Described:
    return {path: facts for path, facts in found.items() if path not in OURS}


@pytest.mark.parametrize("form", ["docker", "oci", "oci-gzip"])
def test_every_path_mode_link_size_and_byte_matches_what_tar_extracts(form: str, tmp_path: Path) -> None:
    expected = layered_by_tar(write_archive(tmp_path / "docker.tar", CRAFTED), tmp_path)
    found, _ = converted(write_archive(tmp_path / "made.tar", CRAFTED, form), tmp_path)
    assert set(found) >= OURS
    assert without_ours(found) == {path: facts for path, facts in expected.items() if path != "dev/null"}
    assert found["usr/bin/sh"][4] == ("usr/bin/sh",)  # a whiteout removed its other name
    if os.geteuid() == 0:
        assert found["hard/first"][1] & 0o4000
    assert found["again"][4] == ("again", "opaque/new")


def test_the_root_matches_what_buildah_mounts(image_engine: Engine, tmp_path: Path) -> None:
    if image_engine.kind != "buildah" or os.geteuid() != 0:
        pytest.skip("only root's buildah mounts; docker's export is compared in test_engines")
    # buildah refuses a layer that deletes its own entries, and a hard link into the layer below.
    refused = {"same-layer/.wh.kept", ".wh.becomes-folder", "again"}
    layers = [[one for one in layer if one[0].name not in refused] for layer in CRAFTED]
    archive = write_archive(tmp_path / "made.tar", layers)
    found, _ = converted(archive, tmp_path)

    def buildah(*words: str) -> str:
        done = subprocess.run([image_engine.program, *words], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip().splitlines()[-1]

    container = buildah("from", f"docker-archive:{archive}")
    try:
        mounted = described(Path(buildah("mount", container)))
    finally:
        image = json.loads(subprocess.check_output([image_engine.program, "inspect", container]))["FromImageID"]
        buildah("rm", container)
        buildah("rmi", image)
    assert without_ours(found) == {path: facts for path, facts in mounted.items() if path != "dev/null"}


def test_a_huge_sparse_file_is_refused(tmp_path: Path) -> None:
    sparse = tarfile.TarInfo("srv/large")
    sparse.pax_headers = {
        "GNU.sparse.map": "0,0",
        "GNU.sparse.size": str(2**40),
        "GNU.sparse.realsize": str(2**40),
        "GNU.sparse.numblocks": "1",
    }
    archive = write_archive(tmp_path / "made.tar", [[(sparse, b"")]])
    with pytest.raises(ImageError, match="sparse file of 1100 GB: srv/large"):
        import_file(archive, "made", tmp_path / "images", Quiet())


def test_a_volume_is_one_line_of_fstab_even_with_special_characters() -> None:
    config = ImageConfig(digest="", volumes=("/a\n/etc /etc none bind", "/b c"))
    assert configuration_files(config)["etc/fstab"].splitlines() == [
        f"${{ENROOT_ROOTFS}}{path} {path} none x-create=dir,bind,rw,nosuid,nodev"
        for path in (r"/a\012/etc\040/etc\040none\040bind", r"/b\040c")
    ]


def test_the_configuration_becomes_enroots_files(tmp_path: Path) -> None:
    archive = write_archive(
        tmp_path / "made.tar",
        [[file("etc/environment", b"OLD=1\n"), file("etc/rc", b"old")]],
        Env=["A=1", "MULTI=one\ntwo", "PATH=/opt/x:/bin"],
        Volumes={"/data": {}},
        Labels={"b": "2", "a": "with\nnewline"},
        WorkingDir="/it's here",
        Entrypoint=["/entry", "a b"],
        Cmd=["run", "$HOME"],
    )
    _, root = converted(archive, tmp_path)
    assert (root / "etc/environment").read_text() == "A=1\nMULTI=one\nPATH=/opt/x:/bin\n"
    assert (root / "etc/fstab").read_text() == "${ENROOT_ROOTFS}/data /data none x-create=dir,bind,rw,nosuid,nodev\n"
    rc = (root / "etc/rc").read_text()
    assert rc.startswith("# a with newline\n# b 2\n")
    assert "exec /entry 'a b' \"$@\"\n" in rc
    assert "exec /entry 'a b' run '$HOME'\n" in rc
    assert subprocess.run(["sh", "-n", root / "etc/rc"], check=False).returncode == 0
    assert (root / "it's here").is_dir()
    assert (root / "data").stat().st_mode & 0o777 == 0o755  # enroot would create one that users cannot enter


@pytest.mark.parametrize(
    ("layer", "workdir", "there"),
    [
        ([folder("srv")], "/srv/a/b", ["srv", "srv/a", "srv/a/b"]),
        ([file("srv/a/x")], "/srv/a/", ["srv", "srv/a", "srv/a/x"]),
        ([symlink("srv", "/etc")], "/srv/a", ["srv"]),
        ([file("x")], "/../../a", ["x"]),
        ([file("x")], "", ["x"]),
    ],
)
def test_the_working_directory_is_created_unless_a_symlink_is_in_the_way(
    layer: Layer, workdir: str, there: list[str], tmp_path: Path
) -> None:
    found, root = converted(write_archive(tmp_path / "made.tar", [layer], WorkingDir=workdir), tmp_path)
    assert sorted(set(found) - OURS - {"etc"}) == there
    assert (root / "etc/rc").read_text().endswith("exec /bin/sh\nfi\n")


def test_the_record_lists_python_and_packages(tmp_path: Path) -> None:
    library = "opt/venv/lib/python3.12/site-packages"
    layer = [
        file(f"{library}/torch-2.6.0+cu126.dist-info/METADATA"),
        file(f"{library}/submitit-1.5.4.dist-info/METADATA"),
        file("usr/lib/python3.11/os.py"),
        file("usr/lib/python3.11/site-packages/torch-1.0.dist-info/x"),
    ]
    archive = write_archive(tmp_path / "made.tar", [layer], Env=["A=1"], Labels={"who": "me"})
    image = import_file(archive, "made", tmp_path / "images", Quiet())
    with open_archive(archive) as opened:
        digest = opened.config.digest
    assert image.record is not None
    assert (image.record.python, image.record.versions) == ("3.12", {"submitit": "1.5.4", "torch": "2.6.0+cu126"})
    assert (image.record.digest, image.record.labels) == (digest, {"who": "me"})
    again = import_file(image.path, "copied", tmp_path / "images", Quiet()).record
    assert again is not None
    assert (again.python, again.versions, again.environment) == ("3.12", image.record.versions, {"A": "1"})


def test_devices_are_left_out_and_hard_links_may_reach_into_lower_layers(tmp_path: Path) -> None:
    layers = [[file("a", b"content"), device("dev/sda")], [hardlink("b", "a")]]
    found, _ = converted(write_archive(tmp_path / "made.tar", layers), tmp_path)
    assert found["b"][4] == ("a", "b")
    assert "dev/sda" not in found

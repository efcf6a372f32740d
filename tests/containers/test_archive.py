"""Image archives: anything but an archive of a single image is refused by name, and nothing is written."""

from __future__ import annotations

import gzip
import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.images import file, symlink, tar_of, write_archive

from clusterctl.launcher.containers.archive import open_archive
from clusterctl.launcher.containers.squashfs import members_of
from clusterctl.shared.errors import ImageError


def contents(path: Path) -> dict[str, bytes]:
    with open_archive(path) as archive:
        return {member.name: data.read() for member, data in members_of(archive) if data}


@pytest.mark.parametrize("form", ["docker", "oci", "oci-gzip"])
def test_all_formats_are_read_compressed_or_not(form: str, tmp_path: Path) -> None:
    path = write_archive(tmp_path / "a.tar", [[file("x", b"1"), file("y", b"1")], [file("y", b"2")]], form)
    assert contents(path) == {"x": b"1", "y": b"2"}
    path.write_bytes(gzip.compress(path.read_bytes()))
    assert contents(path) == {"x": b"1", "y": b"2"}


def test_a_layer_may_link_to_one_saved_earlier(tmp_path: Path) -> None:
    layer = tar_of([file("x", b"1")])
    made = write_archive(tmp_path / "made.tar", [[file("x", b"1")]])
    diff_id = f"sha256:{hashlib.sha256(layer).hexdigest()}"
    config = json.dumps({"config": {}, "rootfs": {"diff_ids": [diff_id, diff_id]}}).encode()
    manifest = json.dumps([{"Config": "c.json", "Layers": ["a/layer.tar", "b/layer.tar"]}]).encode()
    members = [
        file("manifest.json", manifest), file("c.json", config), file("a/layer.tar", layer),
        symlink("b/layer.tar", "../a/layer.tar"),
    ]  # fmt: skip
    made.write_bytes(tar_of(members))
    assert contents(made) == {"x": b"1"}
    made.write_bytes(tar_of([*members[:3], symlink("b/layer.tar", "../../../etc/passwd")]))
    with pytest.raises(ImageError, match="missing file: b/layer.tar"):
        contents(made)


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:3000])


def _flip(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content.replace(b"the content", b"THE content"))


def _two_images(path: Path) -> None:
    one = {"Config": "c.json", "RepoTags": ["a:1"], "Layers": []}
    path.write_bytes(tar_of([file("manifest.json", json.dumps([one, one | {"RepoTags": ["b:2"]}]).encode())]))


def _manifest(text: bytes) -> Callable[[Path], None]:
    return lambda path: path.write_bytes(tar_of([file("manifest.json", text)])) and None


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_cut, "bad archive"),
        (_flip, "damaged layer: 0/layer.tar"),
        (_two_images, "expected one image, found 2: a:1, b:2"),
        (lambda path: path.write_bytes(b"no tar at all" * 100), "bad archive"),
        (lambda path: path.write_bytes(b""), "empty"),
        (lambda path: path.write_bytes(b"\x1f\x8b" + b"x" * 100), "bad archive"),
        (lambda path: path.write_bytes(b"\x28\xb5\x2f\xfd" + b"x" * 100), "zstd"),
        (lambda path: path.write_bytes(tar_of([file("a")])), "it has neither manifest.json nor index.json"),
        (_manifest(b"{"), "bad archive"),
        (_manifest(b"[1]"), "bad archive"),
        (_manifest(b'[{"Config": "../../etc/passwd", "Layers": []}]'), "missing file: ../../etc/passwd"),
        (_manifest(b'{"a": 1}'), "bad archive"),
    ],
    ids=["cut off", "changed", "two images", "not tar", "empty", "not gzip", "not zstd", "plain tar", "not json",
         "json numbers", "path outside the archive", "other json"],
)  # fmt: skip
def test_a_bad_archive_is_refused_by_name_with_a_hint(
    damage: Callable[[Path], None], message: str, tmp_path: Path
) -> None:
    if message == "zstd" and shutil.which("zstd") is None:
        pytest.skip("no zstd")
    path = write_archive(tmp_path / "made.tar", [[file("x", b"the content")]])
    damage(path)
    with pytest.raises(ImageError, match="made.tar") as caught:
        contents(path)
    assert message in caught.value.message
    assert caught.value.hint


def test_a_layer_with_the_right_digest_that_is_not_a_tar_is_refused(tmp_path: Path) -> None:
    layer = tar_of([file("x", b"1" * 2000)])[:700]
    config = json.dumps({"rootfs": {"diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]}}).encode()
    manifest = json.dumps([{"Config": "c.json", "Layers": ["l.tar"]}]).encode()
    path = tmp_path / "made.tar"
    path.write_bytes(tar_of([file("manifest.json", manifest), file("c.json", config), file("l.tar", layer)]))
    with pytest.raises(ImageError, match="made.tar: bad archive"):
        contents(path)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_byte_changed_anywhere_gives_the_same_root_or_an_error(tmp_path: Path, data: st.DataObject) -> None:
    path = write_archive(tmp_path / "made.tar", [[file("x", b"1" * 40)], [file("y", b"2"), file(".wh.x")]])
    content = bytearray(path.read_bytes())
    for place in data.draw(st.lists(st.integers(0, len(content) - 1), min_size=1, max_size=4)):
        content[place] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    try:
        assert contents(path) == {"y": b"2"}
    except ImageError as error:
        assert error.hint

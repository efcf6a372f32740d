"""Merging layers into one root: whiteouts, links, and archives that try to escape it."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.images import Layer, device, file, folder, hardlink, symlink, write_archive

from clusterctl.launcher.containers.archive import merge, open_archive
from clusterctl.launcher.containers.squashfs import members_of, members_of_stream
from clusterctl.shared.errors import ImageError


def root(*layers: Layer) -> dict[str, bytes | None]:
    """Path -> type in the merged root; None for an implicit folder."""
    merged = merge([[member for member, _ in layer] for layer in layers])
    return {path: content and content.member.type for path, content in merged}


def names(*layers: Layer) -> list[str]:
    return list(root(*layers))


def test_a_higher_layer_replaces_entries_of_lower_ones() -> None:
    assert root([folder("a"), file("a/x")], [file("a")]) == {"a": tarfile.REGTYPE}
    assert names([file("a")], [file("a/x")]) == ["a", "a/x"]
    assert names([folder("a"), file("a/x")], [folder("a"), file("a/y")]) == ["a", "a/x", "a/y"]


def test_a_link_below_is_replaced_and_never_followed() -> None:
    found = root([folder("usr/lib"), symlink("lib", "usr/lib")], [folder("lib"), file("lib/x")])
    assert found["lib"] == tarfile.DIRTYPE
    assert "usr/lib/x" not in found


def test_a_whiteout_applies_to_lower_layers_wherever_it_is() -> None:
    assert names([file("a")], [file("a"), file(".wh.a")]) == ["a"]
    assert names([file("a")], [file(".wh.a")]) == []
    assert names([file("d/a")], [file("d/b"), file("d/.wh..wh..opq")]) == ["d", "d/b"]
    assert names([file("a")], [file(".wh..wh.plnk"), file(".wh..wh.aufs")]) == ["a"]
    assert names([file("a")], [file("nowhere/.wh.a"), file("nowhere/.wh..wh..opq")]) == ["a"]


def test_folders_precede_their_contents_even_a_thousand_levels_deep() -> None:
    deep = "/".join(["d"] * 5000)
    found = names([file(f"{deep}/x"), file("a")])
    assert found[0] == "a"
    assert found[-1] == f"{deep}/x"
    assert found == sorted(found, key=lambda path: path.split("/"))


@pytest.mark.parametrize(
    "layer",
    [
        [file("../evil")],
        [file("a/../../evil")],
        [file("/etc/passwd")],
        [file("./../evil")],
        [symlink("a", "/etc"), file("a/evil")],
        [symlink("a", ".."), folder("a/b")],
        [file("a"), file("a/evil")],
        [hardlink("evil", "/etc/shadow")],
        [hardlink("evil", "../etc/shadow")],
        [symlink("a", "/etc"), hardlink("evil", "a/shadow")],
        [folder("a"), hardlink("evil", "a")],
        [hardlink("evil", "evil")],
        [file(".wh...")],
        [file("x/.wh..")],
        [file(".wh.")],
    ],
    ids=lambda layer: layer[-1][0].name,
)
def test_an_entry_that_would_escape_the_root_is_refused_by_name(layer: Layer, tmp_path: Path) -> None:
    evil = layer[-1][0].name
    with pytest.raises(ImageError) as caught:
        root(layer)
    assert evil in caught.value.message
    assert caught.value.hint
    with (
        pytest.raises(ImageError, match="bad archive"),
        open_archive(write_archive(tmp_path / "evil.tar", [layer])) as archive,
    ):
        list(members_of(archive))


def test_symlinks_are_kept_as_text_and_devices_are_left_out() -> None:
    assert root([symlink("a", "/etc/shadow"), symlink("b", "../../x"), device("c")]) == {
        "a": tarfile.SYMTYPE,
        "b": tarfile.SYMTYPE,
    }


NAMES = st.text("ab./\0é\n", min_size=1, max_size=8) | st.sampled_from(
    [".wh.a", "a/.wh..wh..opq", "/", "..", "a/b", "a"]
)
ENTRIES = st.one_of(
    st.builds(file, NAMES, st.binary(max_size=20), st.integers(0, 0o7777)),
    st.builds(folder, NAMES, st.integers(0, 0o7777)),
    st.builds(symlink, NAMES, NAMES),
    st.builds(hardlink, NAMES, NAMES),
    st.builds(device, NAMES),
)


@given(st.lists(st.lists(ENTRIES, max_size=6), max_size=3))
def test_arbitrary_layers_give_a_tree_or_are_refused(layers: list[Layer]) -> None:
    try:
        merged = list(merge([[member for member, _ in layer] for layer in layers]))
    except ImageError:
        return
    kinds: dict[str, bool] = {}
    for path, content in merged:
        parts = path.split("/")
        assert not {"", ".", ".."} & set(parts)
        assert all(kinds["/".join(parts[:count])] for count in range(1, len(parts))), "a parent is not a folder"
        assert path not in kinds
        assert content is None or content.member.type not in (tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.LNKTYPE)
        kinds[path] = content is None or content.member.isdir()


@given(st.binary(max_size=3000))
def test_any_bytes_are_refused_as_an_archive_without_a_traceback(content: bytes) -> None:
    with pytest.raises((ImageError, tarfile.TarError)):
        list(members_of_stream(io.BytesIO(b"x" + content)))


def test_a_stream_is_checked_like_a_layer() -> None:
    from support.images import tar_of

    kept = [folder("./"), file("./a", b"1"), file(".dockerenv"), device("dev/x"), hardlink("b", "./a")]
    assert [member.name for member, _ in members_of_stream(io.BytesIO(tar_of(kept)))] == ["a", "b"]
    with pytest.raises(ImageError, match="escapes the root"):
        list(members_of_stream(io.BytesIO(tar_of([file("../a")]))))

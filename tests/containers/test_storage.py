"""Image storage of rootless engines, and the disk space that a build needs."""

from __future__ import annotations

import shutil
import zipfile
from collections import namedtuple
from pathlib import Path

import pytest

from clusterctl.launcher.containers.engine import Storage, check_space, find_storage, space_for
from clusterctl.shared.errors import ImageError

USAGE = namedtuple("USAGE", "total used free")


def engine(folder: Path, without: str, overlay: str = "exit 125", name: str = "buildah") -> str:
    """A program whose default driver is `without`; `overlay` is its reaction to a request for overlay."""
    keys = ("graphDriverName", "graphRoot") if name == "podman" else ("GraphDriverName", "GraphRoot")
    path = folder / name
    path.write_text(f"""#!/bin/sh
driver={without}
[ "$STORAGE_DRIVER" != overlay ] || {{ driver=overlay; {overlay}; }}
echo '{{"store": {{"{keys[0]}": "'${{STORAGE_DRIVER:-$driver}}'", "{keys[1]}": "/images"}}}}'
""")
    path.chmod(0o700)
    return str(path)


@pytest.mark.parametrize("name", ["buildah", "podman"])
@pytest.mark.parametrize(
    ("own", "overlay", "named", "taken"),
    [
        ("vfs", "true", {}, "overlay"),
        ("vfs", "exit 125", {}, "vfs"),  # an old kernel
        ("vfs", "true", {"STORAGE_DRIVER": "vfs"}, "vfs"),  # chosen by the user
        ("overlay", "exit 125", {}, "overlay"),
        ("btrfs", "true", {}, "btrfs"),
    ],
)
def test_overlay_replaces_vfs_if_it_works(
    name: str, own: str, overlay: str, named: dict[str, str], taken: str, tmp_path: Path
) -> None:
    found = find_storage(engine(tmp_path, own, overlay, name), {"PATH": "/usr/bin:/bin", **named})
    assert found == Storage(taken, Path("/images"))


def test_an_engine_that_reports_no_driver_keeps_its_default(tmp_path: Path) -> None:
    silent = tmp_path / "buildah"
    silent.write_text("#!/bin/sh\necho no\n")
    silent.chmod(0o700)
    assert find_storage(str(silent), {}) is None


def test_the_space_for_a_build_is_estimated_from_its_wheels_and_checked_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with zipfile.ZipFile(tmp_path / "a.whl", "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr("a/large", bytes(10_000_000))
    layered, copying = Storage("overlay", tmp_path / "not" / "yet"), Storage("vfs", tmp_path)
    one, twice = (space_for(tmp_path.glob("*.whl"), kept) for kept in (layered, copying))
    assert 300_000_000 + 12_500_000 < one < 320_000_000
    assert twice > 2 * one
    monkeypatch.setattr(shutil, "disk_usage", lambda _: USAGE(0, 0, 10**9))
    assert check_space(5 * 10**8, None) == "the build takes about 0.5 GB"
    assert "0.5 GB of 1.0 GB free in" in check_space(5 * 10**8, layered)
    assert "apt install fuse-overlayfs" in check_space(5 * 10**8, copying)
    for kept, hint in ((layered, "free some space"), (copying, "apt install fuse-overlayfs")):
        with pytest.raises(ImageError, match="not enough disk space: the build takes about 2.0 GB of 1.0 GB") as caught:
            check_space(2 * 10**9, kept)
        assert hint in caught.value.hint

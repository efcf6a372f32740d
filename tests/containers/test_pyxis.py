"""Container fields as pyxis flags, and values that flags cannot express."""

from __future__ import annotations

import pytest

from clusterctl.launcher.containers.runtimes import Mount, check_image, make_view
from clusterctl.shared.errors import ConfigError
from clusterctl.shared.spec import Container


def test_every_switch_is_explicit_so_site_defaults_do_not_matter() -> None:
    view = make_view("/images/pyg.sqsh", Container(), [Mount("/runs", "/runs")], ["B", "A", "B"], "/work")
    assert view.flags() == [
        "--container-image=/images/pyg.sqsh",
        "--container-mounts=/runs:/runs",
        "--container-workdir=/work",
        "--container-readonly",
        "--no-container-mount-home",
        "--no-container-remap-root",
        "--no-container-entrypoint",
        "--container-env=A,B",
    ]


def test_mounts_follow_clusterctls_own_and_a_single_path_is_its_own_target() -> None:
    container = Container(mounts=("/data:/in:ro+rbind", "/scratch"))
    flags = make_view("python:3.11-slim", container, [Mount("/runs", "/runs")], [], "/").flags()
    assert "--container-mounts=/runs:/runs,/data:/in:ro+rbind,/scratch:/scratch" in flags


def test_a_folder_is_mounted_before_its_subfolders() -> None:
    container = Container(mounts=("/shared:/shared:ro", "/shared/data"))
    view = make_view("/i.sqsh", container, [Mount("/shared/me/runs", "/shared/me/runs")], [], "/")
    assert [mount.target for mount in view.mounts] == ["/shared", "/shared/data", "/shared/me/runs"]


def test_the_image_sets_the_working_directory_by_default() -> None:
    assert not any("workdir" in flag for flag in make_view("/i.sqsh", Container(), [], [], None).flags())
    assert "--container-workdir=/own" in make_view("/i.sqsh", Container(workdir="/own"), [], [], "/x").flags()


@pytest.mark.parametrize(
    "text",
    ["data:/x", "/a:/b:ro:more", "/a,b:/c", "/a+b", "/a:c d:", "", "/a\n", "/100%", "/a:/b:r0", "/a:/", "/a:/b:"],
)
def test_a_mount_that_pyxis_would_misread_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="container.mounts"):
        Mount.parse(text)


@pytest.mark.parametrize(
    "image",
    ["/i/x.sqsh", "python:3.11-slim", "nvcr.io#nvidia/pyg:24.07-py3", "localhost:5000#a/b", "user@ghcr.io#a/b:1"],
)
def test_files_and_references_are_accepted(image: str) -> None:
    assert check_image(image) == image


@pytest.mark.parametrize("image", ["image.sqsh", "docker://python", "nvcr.io#", "a b", "Python:3", "x:$(id)", "--help"])
def test_other_image_values_are_refused_before_submission(image: str) -> None:
    with pytest.raises(ConfigError, match="container.image"):
        check_image(image)

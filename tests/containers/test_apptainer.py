"""A container view as Apptainer's command line."""

from __future__ import annotations

import subprocess

import pytest

from clusterctl.launcher.containers.runtimes import ContainerView, Mount, is_address, runner
from clusterctl.shared.errors import ConfigError

VIEW = ContainerView(
    image="/images/pyg.sif",
    mounts=(Mount("/runs", "/runs"), Mount("/data", "/in", ("ro",))),
    workdir="/runs/x/work",
    environment=("A", "B"),
)


def test_a_view_becomes_the_arguments_of_apptainer_exec() -> None:
    shell, _, _, names, *words = runner(VIEW, gpus=False)
    assert (shell, names) == ("sh", "A B")
    assert words == [
        *("apptainer", "exec", "--no-eval", "--no-mount=cwd", "--no-home"),
        *("--bind=/runs:/runs", "--bind=/data:/in:ro", "--pwd=/runs/x/work", "/images/pyg.sif"),
    ]


@pytest.mark.parametrize(
    ("changed", "word"),
    [({"writable": True}, "--writable-tmpfs"), ({"remap_root": True}, "--fakeroot"), ({"entrypoint": True}, "run")],
)
def test_each_container_setting_has_its_option(changed: dict[str, bool], word: str) -> None:
    assert word in runner(ContainerView(image="/i.sif", **changed), gpus=False)  # type: ignore[arg-type]
    assert word not in runner(ContainerView(image="/i.sif"), gpus=False)


def test_driver_libraries_are_requested_only_with_gpus() -> None:
    assert "--nv" in runner(VIEW, gpus=True)
    assert "--nv" not in runner(VIEW, gpus=False)


def test_home_is_mounted_only_on_request() -> None:
    assert "--no-home" not in runner(ContainerView(image="/i.sif", mount_home=True), gpus=False)


def test_an_unsupported_mount_flag_is_refused() -> None:
    with pytest.raises(ConfigError, match="supports only ro and rw: noexec"):
        runner(ContainerView(image="/i.sif", mounts=(Mount("/a", "/b", ("ro", "noexec")),)), gpus=False)


@pytest.mark.parametrize("value", ["plain", "a b", "it's", '"$HOME" `id` \\', "", "two\nlines"])
def test_the_runs_variables_override_the_images_variables(value: str) -> None:
    show = 'printf "%s|%s" "$APPTAINERENV_A" "${APPTAINERENV_B-unset}"'
    words = [*runner(VIEW, gpus=False)[:4], "sh", "-c", show]
    environment = {"A": value, "PATH": "/usr/bin:/bin"}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == f"{value}|unset"


@pytest.mark.parametrize(
    ("image", "address"),
    [("docker://nvcr.io/nvidia/pyg:24.07-py3", True), ("oras://r.example/x:1", True), ("docker://a b", False)],
)
def test_remote_addresses_are_passed_to_apptainer(image: str, address: bool) -> None:
    assert is_address(image) is address

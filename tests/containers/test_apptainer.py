"""What a task sees in its container, as Apptainer takes it."""

from __future__ import annotations

import subprocess

import pytest

from clusterctl.containers.apptainer import is_address, runner
from clusterctl.containers.pyxis import ContainerView, Mount
from clusterctl.errors import ConfigError

VIEW = ContainerView(
    image="/images/pyg.sif",
    mounts=(Mount("/runs", "/runs"), Mount("/data", "/in", ("ro",))),
    workdir="/runs/x/work",
    environment=("A", "B"),
)


def test_a_view_becomes_the_words_of_apptainer_exec() -> None:
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
def test_each_setting_of_a_container_has_its_word(changed: dict[str, bool], word: str) -> None:
    assert word in runner(ContainerView(image="/i.sif", **changed), gpus=False)  # type: ignore[arg-type]
    assert word not in runner(ContainerView(image="/i.sif"), gpus=False)


def test_the_drivers_libraries_are_asked_for_with_gpus_alone() -> None:
    assert "--nv" in runner(VIEW, gpus=True)
    assert "--nv" not in runner(VIEW, gpus=False)


def test_home_is_there_if_it_is_to_be() -> None:
    assert "--no-home" not in runner(ContainerView(image="/i.sif", mount_home=True), gpus=False)


def test_a_flag_of_a_mount_that_apptainer_lacks_is_refused() -> None:
    with pytest.raises(ConfigError, match="no flag but ro and rw: noexec"):
        runner(ContainerView(image="/i.sif", mounts=(Mount("/a", "/b", ("ro", "noexec")),)), gpus=False)


@pytest.mark.parametrize("value", ["plain", "a b", "it's", '"$HOME" `id` \\', "", "two\nlines"])
def test_variables_of_the_run_beat_the_images_whatever_they_hold(value: str) -> None:
    show = 'printf "%s|%s" "$APPTAINERENV_A" "${APPTAINERENV_B-unset}"'
    words = [*runner(VIEW, gpus=False)[:4], "sh", "-c", show]
    environment = {"A": value, "PATH": "/usr/bin:/bin"}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == f"{value}|unset"


@pytest.mark.parametrize(
    ("image", "address"),
    [("docker://nvcr.io/nvidia/pyg:24.07-py3", True), ("oras://r.example/x:1", True), ("docker://a b", False)],
)
def test_addresses_are_left_to_apptainer(image: str, address: bool) -> None:
    assert is_address(image) is address

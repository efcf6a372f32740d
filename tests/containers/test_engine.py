"""The choice of an engine, its commands, and hints for its error messages."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterctl.launcher.containers.engine import Engine, Storage, explain, find_engine
from clusterctl.shared.errors import ClusterctlError, ConfigError, ImageError


def program(folder: Path, name: str, script: str = "exit 0") -> Path:
    path = folder / name
    path.write_text(f'#!/bin/sh\necho "$0 $*" >>"{folder}/asked"\n{script}\n')
    path.chmod(0o700)
    return path


def asked(folder: Path) -> str:
    return (folder / "asked").read_text()


def test_a_docker_client_without_a_daemon_is_not_used(tmp_path: Path) -> None:
    program(tmp_path, "docker", "echo Cannot connect to the Docker daemon >&2; exit 1")
    with pytest.raises(ImageError, match="docker: the daemon does not answer") as caught:
        find_engine(environment={"PATH": str(tmp_path)})
    assert "buildah" in caught.value.hint
    program(tmp_path, "buildah")
    assert find_engine(environment={"PATH": str(tmp_path)}).kind == "buildah"


def test_docker_comes_first_unless_another_is_named(tmp_path: Path) -> None:
    for name in ("docker", "podman", "buildah"):
        program(tmp_path, name)
    environment = {"PATH": str(tmp_path)}
    assert find_engine(environment=environment) == Engine("docker", str(tmp_path / "docker"))
    assert find_engine(environment=environment | {"CONTAINER_ENGINE": "podman"}).kind == "podman"
    assert find_engine("buildah", environment | {"CONTAINER_ENGINE": "podman"}).kind == "buildah"
    assert find_engine(str(tmp_path / "podman"), environment).program == str(tmp_path / "podman")


@pytest.mark.parametrize(
    ("chosen", "error", "message"),
    [
        ("dokcer", ConfigError, "no such engine: dokcer"),
        ("podman", ImageError, "not on PATH: podman"),
        ("docker", ImageError, "docker does not work here: the daemon does not answer"),
        ("buildah", ImageError, "buildah does not work here: no subuids"),
        (None, ImageError, "docker: the daemon does not answer; buildah: no subuids"),
    ],
)
def test_an_engine_that_does_not_work_is_reported_with_the_reason(
    chosen: str | None, error: type[ClusterctlError], message: str, tmp_path: Path
) -> None:
    program(tmp_path, "docker", "exit 1")
    program(tmp_path, "buildah", "echo no subuids >&2; exit 125")
    with pytest.raises(error) as caught:
        find_engine(chosen, {"PATH": str(tmp_path)})
    assert message in caught.value.message
    assert caught.value.hint


def test_a_user_without_id_ranges_cannot_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An image contains files of several users."""
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    own, others = "         0       1000          1", "         1     100000      65536"
    program(tmp_path, "buildah", f"[ $1 != unshare ] || printf '{own}\\n{others}\\n'")
    assert find_engine("buildah", {"PATH": str(tmp_path)}).kind == "buildah"
    program(tmp_path, "buildah", f"[ $1 != unshare ] || printf '{own}\\n'")
    with pytest.raises(ImageError, match="you have no ID ranges in /etc/subuid"):
        find_engine("buildah", {"PATH": str(tmp_path)})


def test_no_engine_on_path_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match="docker, podman and buildah are not on PATH"):
        find_engine(environment={"PATH": str(tmp_path)})


@pytest.mark.parametrize("kind", ["docker", "podman", "buildah"])
def test_no_build_has_a_network(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output: list[str] = []
    engine = Engine(kind, str(program(tmp_path, kind, "echo STEP 1; echo step 2 >&2")))
    unshare = program(tmp_path, "unshare", 'shift; exec "$@"')
    monkeypatch.setenv("PATH", f"{unshare.parent}:/usr/bin:/bin")
    monkeypatch.setattr("os.geteuid", lambda: 0)
    engine.build(tmp_path / "context", "localhost/x:latest", {"BASE": "b:1"}, output.append)
    assert sorted(output) == ["STEP 1", "step 2"]
    words = asked(tmp_path)
    assert "--network=none" in words or "unshare --net" in words
    assert "--build-arg BASE=b:1" in words
    assert "--tag localhost/x:latest" in words


def test_a_failed_build_reports_the_engines_last_line(tmp_path: Path) -> None:
    script = "echo STEP 1; echo 'Error: writing blob: no space left on device' >&2; exit 125"
    engine = Engine("podman", str(program(tmp_path, "podman", script)))
    with pytest.raises(ImageError, match="podman build failed: no space left: Error: writing blob") as caught:
        engine.build(tmp_path, "x", {}, lambda line: None)
    assert "podman image prune" in caught.value.hint


@pytest.mark.parametrize("kind", ["podman", "buildah"])
def test_a_build_that_ran_out_of_space_removes_its_layers(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The layers of earlier builds, and of a build that failed for another reason, are kept as a cache."""
    script = """case "$*" in
images*) cat "$0.images" ;;
rmi*) ;;
*) echo sha256:new >>"$0.images"; echo "Error: $WHY"; exit 125 ;;
esac"""
    engine = Engine(kind, str(program(tmp_path, kind, script)), Storage("overlay", tmp_path))
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    for why, removes in (("exit status 1", False), ("no space left on device", True)):
        (tmp_path / f"{kind}.images").write_text("sha256:old\n")
        monkeypatch.setenv("WHY", why)
        with pytest.raises(ImageError):
            engine.build(tmp_path, "x", {}, lambda line: None)
        assert ("rmi sha256:new\n" in asked(tmp_path)) == removes


def test_builds_with_a_copying_storage_driver_use_a_single_layer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    path = str(program(tmp_path, "buildah", f'echo "$STORAGE_DRIVER" >>{tmp_path}/driver'))
    for driver, layers in (("vfs", "--layers=false "), ("overlay", "--layers ")):
        Engine("buildah", path, Storage(driver, tmp_path)).build(tmp_path, "x", {}, lambda line: None)
        assert f"bud {layers}" in asked(tmp_path)
        assert (tmp_path / "driver").read_text().split()[-1] == driver


@pytest.mark.parametrize(
    ("line", "message", "hint"),
    [
        ("dial tcp: lookup registry-1.docker.io: no such host", "cannot reach the registry", "--base bootstrap"),
        (
            "pinging container registry nvcr.io: Get: dial tcp: i/o timeout",
            "cannot reach the registry",
            "--base bootstrap",
        ),
        ("manifest for python:3.11-slimm not found: manifest unknown", "no such image", "check name and tag"),
        ("pull access denied for x, repository does not exist or may require", "no such image", "check name and tag"),
        ("Error: localhost/gone: image not known", "no such image", "check name and tag"),
        ("unauthorized: authentication required", "the registry refused access", "docker login REGISTRY"),
        ("write /x: no space left on device", "no space left", "df -h"),
        ("ERROR: No matching distribution found for torch", "a wheel is missing", "--fresh"),
        (
            "dial unix /var/run/docker.sock: permission denied /var/run/docker.sock",
            "no permission to build",
            "docker group",
        ),
        ("Error: something new", "Error: something new", "-v"),
    ],
)
def test_known_engine_messages_have_a_hint(line: str, message: str, hint: str) -> None:
    found, typed = explain(["STEP 3/7: COPY", line, "exit status 1"], "docker")
    assert message in found
    assert hint in typed


@pytest.mark.parametrize(
    ("line", "message", "hint"),
    [
        ("[ERROR] URL https://r.io/v2/x/manifests/1 returned error code: 404 Not Found", "no such image", "check name"),
        (
            "[ERROR] URL https://r.io/token returned error code: 401 Unauthorized",
            "the registry refused access",
            "credentials",
        ),
        ("curl: (6) Could not resolve host: registry-1.docker.io", "cannot reach the registry", "network here"),
        ("[ERROR] Could not process JSON input", "JSON input", "with -v"),
    ],
)
def test_known_enroot_messages_have_a_hint(line: str, message: str, hint: str) -> None:
    found, typed = explain(["[INFO] Fetching image manifest list", line], "enroot")
    assert message in found
    assert line in found
    assert hint in typed


def test_an_engine_without_output_is_explained_too() -> None:
    assert explain([], "docker")[0] == "no output"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("curl: (22) The requested URL returned error: 401", "the registry refused access: curl: (22)"),
        ("\x1b[31m[ERROR]\x1b[0m Could not process JSON input", "[ERROR] Could not process JSON input"),
    ],
)
def test_what_enroot_only_informs_about_is_no_reason(line: str, message: str) -> None:
    informed = "[INFO] Using credentials from file: /home/ada/.config/enroot/.credentials"
    assert explain(["[INFO] Querying registry", line, informed], "enroot")[0].startswith(message)

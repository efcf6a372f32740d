"""Every engine builds the same image: a Docker daemon started here, compared with the engine of the other tests."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.images import CRAFTED, OURS, PYTHON, Quiet, described, working_engine, write_archive

from clusterctl.launcher.config import cache_folder
from clusterctl.launcher.containers.build import BuildRequest, bootstrapped, build, import_file, packed
from clusterctl.launcher.containers.contents import read_record, verify
from clusterctl.launcher.containers.engine import Engine

pytestmark = pytest.mark.long

_OPTIONS = ["--storage-driver=overlay2", "--bridge=none"]
_OPTIONS += [f"--{name}=false" for name in ("iptables", "ip6tables", "ip-forward", "ip-masq")]


@pytest.fixture(scope="module")
def docker() -> Iterator[Engine]:
    """The tests' own Docker daemon, without a network."""
    if os.geteuid() != 0 or shutil.which("dockerd") is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)("no docker daemon can be started (package docker.io)")
    with tempfile.TemporaryDirectory(prefix="dockerd-", dir="/tmp") as folder, pytest.MonkeyPatch.context() as patch:
        place = [f"--data-root={folder}/data", f"--exec-root={folder}/exec", f"--pidfile={folder}/pid"]
        patch.setenv("DOCKER_HOST", f"unix://{folder}/socket")
        with Path(folder, "log").open("w") as log:
            command = ["dockerd", *_OPTIONS, *place, f"--host=unix://{folder}/socket"]
            daemon = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            deadline = time.monotonic() + 30
            while subprocess.run(["docker", "version"], capture_output=True, check=False).returncode:
                alive = daemon.poll() is None and time.monotonic() < deadline
                assert alive, Path(folder, "log").read_text()
                time.sleep(0.1)
            yield working_engine("docker")
        finally:
            daemon.terminate()
            daemon.wait(30)


def test_docker_builds_what_buildah_builds(docker: Engine, cpu_image: Path, tmp_path: Path) -> None:
    buildah = working_engine("buildah")
    base = bootstrapped(buildah, PYTHON, print)
    archive = tmp_path / "base.tar"
    subprocess.run([buildah.program, "push", "-q", base, f"docker-archive:{archive}:{base}"], check=True)
    subprocess.run([docker.program, "load", "-q", "-i", archive], check=True)
    image = build(BuildRequest(name="by-docker", base=base), docker, tmp_path, cache_folder(), PYTHON, Quiet())
    record, other = image.record, read_record(cpu_image)
    assert verify(image) == []
    assert record is not None
    assert other is not None
    assert (record.python, record.versions, record.environment) == (other.python, other.versions, other.environment)

    def listing(path: Path) -> set[str]:
        done = subprocess.run(["unsquashfs", "-d", "", "-l", path], capture_output=True, text=True, check=True)
        return set(done.stdout.splitlines())

    differ = listing(image.path) ^ listing(cpu_image)
    assert not {
        path for path in differ if not path.startswith(("/etc/host", "/etc/resolv", "/etc/mtab", "/dev", "/run"))
    }


def test_docker_save_and_docker_export_give_the_same_root(docker: Engine, tmp_path: Path) -> None:
    refused = {"same-layer/.wh.kept", ".wh.becomes-folder", "again"}
    layers = [[one for one in layer if one[0].name not in refused] for layer in CRAFTED]
    archive = write_archive(tmp_path / "made.tar", layers)
    subprocess.run([docker.program, "load", "-q", "-i", archive], check=True)
    saved = tmp_path / "saved.tar"
    subprocess.run([docker.program, "save", "made:latest", "-o", saved], check=True)
    roots = []
    for image in (
        import_file(saved, "saved", tmp_path / "images", Quiet()),
        packed(docker, "made:latest", "exported", "made:latest", tmp_path / "images", Quiet()),
    ):
        root = tmp_path / image.name
        subprocess.run(["unsquashfs", "-q", "-n", "-d", root, image.path], check=True, capture_output=True)
        roots.append({path: facts for path, facts in described(root).items() if path not in OURS})
    # docker creates these in every container
    own = {
        "dev/console",
        "dev/pts",
        "dev/shm",
        "etc/hostname",
        "etc/hosts",
        "etc/mtab",
        "etc/resolv.conf",
        "proc",
        "sys",
    }
    saved_root, exported_root = ({p: f for p, f in root.items() if p not in own} for root in roots)
    assert exported_root == saved_root

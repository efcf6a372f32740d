"""The torch version and image digest recorded at submission, from folder names and records, without imports."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from clusterctl.launcher.config import resolve
from clusterctl.launcher.containers.contents import ImageRecord, write_record
from clusterctl.launcher.submission.new_run import image_digest, task_versions
from clusterctl.launcher.submission.plan import Plan, make_plan
from clusterctl.shared.record.layout import RunDir
from clusterctl.shared.spec import Cluster


def planned(folder: Path, table: str = "", **cluster: object) -> Plan:
    (folder / "job.toml").write_text(f'workload = "command"\nargv = ["true"]\n{table}')
    site = replace(Cluster(name="site"), **cluster)  # type: ignore[arg-type]
    resolved = resolve(str(folder / "job.toml"), site, (), {}, folder)
    return make_plan(resolved, RunDir(folder / "runs" / "x"), folder / "code", "0", f"{folder}/venv/bin/python")


def install(environment: Path, *names: str) -> None:
    for name in names:
        (environment / "lib" / "python3.12" / "site-packages" / f"{name}.dist-info").mkdir(parents=True)


def test_the_torch_version_is_that_of_the_programs_environment(tmp_path: Path) -> None:
    install(tmp_path / "venv", "torch-2.1.0", "torch_geometric-2.8.0")
    assert task_versions(planned(tmp_path)) == {"torch": "2.1.0"}
    install(tmp_path / "other", "torch-2.9.0+cu128")
    setup = f'setup = ["source {tmp_path}/other/bin/activate"]\n'
    assert task_versions(planned(tmp_path, setup)) == {"torch": "2.9.0+cu128"}
    named = planned(tmp_path, setup, python=f"{tmp_path}/venv/bin/python")
    assert task_versions(named) == {"torch": "2.1.0"}


def test_versions_that_cannot_be_read_are_not_recorded(tmp_path: Path) -> None:
    plan = planned(tmp_path)
    assert (task_versions(plan), image_digest(plan)) == ({}, None)
    assert task_versions(planned(tmp_path, python="python3")) == {}
    install(tmp_path / "venv", "torch-2.1.0", "torch-2.2.0")
    assert task_versions(planned(tmp_path)) == {}


def test_an_images_digest_comes_from_its_record(tmp_path: Path) -> None:
    image = tmp_path / "a.sqsh"
    plan = planned(tmp_path, f'[container]\nimage = "{image}"\n')
    assert (task_versions(plan), image_digest(plan)) == ({}, None)
    record = ImageRecord(
        name="a", digest="sha256:1", sqsh="2", size=1, source="x", created=1.0, versions={"torch": "2.4.0"}
    )
    write_record(image, record)
    assert (task_versions(plan), image_digest(plan)) == ({"torch": "2.4.0"}, "sha256:1")
    image.with_suffix(".json").write_text("{")
    assert (task_versions(plan), image_digest(plan)) == ({}, None)


def test_an_images_digest_comes_from_its_reference(tmp_path: Path) -> None:
    digest = "sha256:" + "a1" * 32
    plan = planned(tmp_path, f'[container]\nimage = "nvcr.io#nvidia/pyg@{digest}"\n', container_runtime="pyxis")
    assert image_digest(plan) == digest

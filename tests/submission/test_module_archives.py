"""The archives that nodes copy modules from: what they hold, and when a new one is made."""

from __future__ import annotations

import os
import tarfile
import time
from pathlib import Path

import pytest

from clusterctl.launcher.api.clean import YOUNG_SECONDS, find_unused, remove_unused
from clusterctl.launcher.config import Resolved
from clusterctl.launcher.submission.module_archives import archive_modules, link_archives
from clusterctl.launcher.submission.plan import Plan, make_plan
from clusterctl.launcher.submission.snapshot import find_code, take_snapshot
from clusterctl.shared.errors import ConfigError
from clusterctl.shared.record.layout import RunDir
from clusterctl.shared.spec import Cluster, CommandTrain, Job, Resources

PACKAGES = "lib/python3.12/site-packages"


class Site:
    """A folder of runs, a project, and an environment that the cluster file may name."""

    def __init__(self, folder: Path) -> None:
        self.runs, self.project, self.environment = folder / "runs", folder / "project", folder / "env"
        self.write(self.project, "train.py", "package/__init__.py", "package/data.csv", "results/log.txt", "fast.so")
        self.write(
            self.environment,
            "pyvenv.cfg",
            "bin/activate",
            f"{PACKAGES}/torch/__init__.py",
            f"{PACKAGES}/torch/__pycache__/__init__.cpython-312.pyc",
            f"{PACKAGES}/torch/_C.cpython-312-x86_64-linux-gnu.so",
            f"{PACKAGES}/torch/old.pyc",
            f"{PACKAGES}/torch/tests/test_torch.py",
            f"{PACKAGES}/torch/lib/readme.txt",
            f"{PACKAGES}/torch-2.6.dist-info/METADATA",
            f"{PACKAGES}/old-1.0.egg-info",
        )

    def write(self, folder: Path, *names: str) -> None:
        for name in names:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(name)

    def plan(self, name: str = "x", *, named: bool = True, stage: bool = True) -> Plan:
        cluster = Cluster(name="c", python_environments=(str(self.environment),) if named else ())
        resources = Resources(gpus_per_node=0, tasks_per_node=1, warning=0, local_code=stage)
        code = str(self.project)
        job = Job(name="x", workload="command", argv=("a",), code=code, resources=resources, train=CommandTrain())
        resolved = Resolved(job, cluster, {}, self.project)
        python = str(self.environment / "bin" / "python")
        folder = find_code(self.runs, self.project).folder
        return make_plan(resolved, RunDir(self.runs / name), folder, "0", python)

    def archive(self, plan: Plan) -> dict[Path, Path]:
        return archive_modules(plan, take_snapshot(find_code(self.runs, self.project)))


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def names(archive: Path) -> list[str]:
    with tarfile.open(archive) as members:
        return [f"{member.name}{'/' * member.isdir()}" for member in members]


def test_an_archive_holds_importable_files_and_empty_native_modules(site: Site) -> None:
    (archive,) = site.archive(site.plan()).values()
    assert names(archive) == [
        "lib/",
        "lib/python3.12/",
        "lib/python3.12/site-packages/",
        f"{PACKAGES}/old-1.0.egg-info",
        f"{PACKAGES}/torch/",
        f"{PACKAGES}/torch/_C.cpython-312-x86_64-linux-gnu.so",
        f"{PACKAGES}/torch/__init__.py",
        f"{PACKAGES}/torch/__pycache__/",
        f"{PACKAGES}/torch/__pycache__/__init__.cpython-312.pyc",
        f"{PACKAGES}/torch-2.6.dist-info",
    ]
    with tarfile.open(archive) as members:
        sizes = {member.name.rpartition("/")[2]: member.size for member in members}
    assert sizes["_C.cpython-312-x86_64-linux-gnu.so"] == 0
    assert sizes["__init__.py"] == len(f"{PACKAGES}/torch/__init__.py")


def test_archives_of_the_code_are_beside_its_copy(site: Site) -> None:
    plan = site.plan()
    site.archive(plan)
    code = find_code(site.runs, site.project).folder
    assert names(code / "project.tar") == ["fast.so", "package/", "package/__init__.py", "train.py"]
    assert "clusterctl/shared/node/staging.py" in names(code / "lib.tar")
    assert plan.staging is not None
    assert [archive for _, archive in plan.staging.archives] == [
        str(code / "lib.tar"),
        str(code / "project.tar"),
        str(site.runs / "x" / "environments" / "0.tar"),
    ]


def test_a_second_run_reuses_the_archive_unless_a_module_changed(site: Site) -> None:
    (first,) = site.archive(site.plan()).values()
    made = first.stat().st_ino
    (second,) = site.archive(site.plan("y")).values()
    assert (second, second.stat().st_ino) == (first, made)
    site.write(site.environment, f"{PACKAGES}/torch/new.py")
    (third,) = site.archive(site.plan("z")).values()
    assert third != first


def test_a_run_without_local_code_has_no_archives(site: Site) -> None:
    assert site.archive(site.plan(stage=False)) == {}
    assert not list(site.runs.rglob("*.tar"))


def test_an_environment_that_is_not_named_is_archived_only_if_it_is_a_venv(site: Site) -> None:
    assert len(site.archive(site.plan(named=False))) == 1
    (site.environment / "pyvenv.cfg").unlink()
    assert site.archive(site.plan(named=False)) == {}
    assert len(site.archive(site.plan())) == 1


def test_a_link_to_a_module_is_followed_and_one_to_a_folder_is_not(site: Site, tmp_path: Path) -> None:
    (tmp_path / "cached.py").write_text("content")
    (site.environment / PACKAGES / "linked.py").symlink_to(tmp_path / "cached.py")
    (site.environment / PACKAGES / "folder").symlink_to(site.project)
    (site.environment / PACKAGES / "nowhere.py").symlink_to("missing")
    (archive,) = site.archive(site.plan()).values()
    with tarfile.open(archive) as members:
        content = members.extractfile(f"{PACKAGES}/linked.py")
        assert content is not None
        assert content.read() == b"content"
    assert not {"folder", "nowhere.py"} & {name.rpartition("/")[2] for name in names(archive)}


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_an_unreadable_module_is_reported(site: Site) -> None:
    (site.environment / PACKAGES / "torch" / "__init__.py").chmod(0)
    with pytest.raises(ConfigError, match=r"__init__\.py"):
        site.archive(site.plan())


def test_a_failed_archive_leaves_nothing_behind(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tarfile.TarFile, "addfile", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left")))
    with pytest.raises(ConfigError, match="cannot archive the modules"):
        site.archive(site.plan())
    assert not list(site.runs.rglob("*.tar*"))


def test_archives_are_removed_once_no_run_refers_to_them(site: Site) -> None:
    run = RunDir(site.runs / "x")
    links = site.archive(site.plan())
    (archive,) = links.values()
    run.path.mkdir()
    run.code.symlink_to(find_code(site.runs, site.project).folder)
    link_archives(run, links)
    link_archives(run, links)  # as on resume
    assert run.environment(0).resolve() == archive
    long_ago = time.time() - 2 * YOUNG_SECONDS
    os.utime(archive, (long_ago, long_ago))
    assert archive not in [unused.path for unused in find_unused(site.runs)]
    link_archives(run, {})
    (unused,) = [unused for unused in find_unused(site.runs) if unused.path == archive]
    assert unused.size >= 10_240
    assert remove_unused(unused)
    assert not list(archive.parent.iterdir())


def test_an_archive_reused_by_a_submission_is_kept(site: Site) -> None:
    (archive,) = site.archive(site.plan()).values()
    long_ago = time.time() - 2 * YOUNG_SECONDS
    os.utime(archive, (long_ago, long_ago))
    (unused,) = [unused for unused in find_unused(site.runs) if unused.path == archive]
    site.archive(site.plan("y"))
    assert not remove_unused(unused)
    assert archive.exists()

"""What a submission reports about the run's copy of the code."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterctl.launcher.api.submitting.verify import copy_rules
from clusterctl.launcher.checks.surroundings import Check, Verdict
from clusterctl.launcher.submission.code_files import CodeFile
from clusterctl.launcher.submission.snapshot import Code, find_code, take_snapshot


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project whose data git ignores."""
    folder = tmp_path / "project"
    (folder / "data" / "raw").mkdir(parents=True)
    (folder / ".git").mkdir()
    (folder / "train.py").touch()
    return folder


def of(project: Path, *names: str, size: int = 0, new: bool = True) -> Code:
    folder = project / "absent" if new else project
    return Code(folder, [], [CodeFile(name, f"{project}/{name}", size) for name in names], {}, project)


def found(code: Code, *argv: str) -> list[Check]:
    return list(copy_rules(code, argv))


def test_a_small_project_that_is_copied_completely_has_no_findings(project: Path) -> None:
    code = of(project, "train.py", "data/raw/a")
    assert found(code, "python", "train.py", "--data", "data/raw", "--out=.", "no/such", "/etc/passwd", "../x") == []
    assert found(Code(project, [], [], {}), "data") == []


@pytest.mark.parametrize(
    "argv", [("python", "train.py", "data/"), ("--root=data/raw",), ("bash", "-c", "cd 'data/raw' && ls; true")]
)
def test_a_path_in_argv_that_git_ignores_is_reported(project: Path, argv: tuple[str, ...]) -> None:
    (check,) = found(of(project, "train.py"), *argv)
    assert check.verdict is Verdict.WARN
    assert check.message.startswith("not copied although argv names it, because git ignores it: data")
    assert f"{project}/data" in check.hint


def test_links_out_of_the_project_are_reported_together(project: Path) -> None:
    links = [CodeFile(f"link{n}", f"{project}/link{n}", link=f"/scratch/{n}") for n in range(5)]
    (check,) = found(Code(project, [], [*links, CodeFile("inner", f"{project}/inner", link="train.py")], {}, project))
    assert check.verdict is Verdict.WARN
    shown = "link0 -> /scratch/0, link1 -> /scratch/1, link2 -> /scratch/2 and 2 more"
    assert check.message == f"not copied: {shown}"


def test_a_large_copy_is_reported_each_time_it_is_made(project: Path) -> None:
    (check,) = found(of(project, "data/x", "data/y", size=40 * 2**20))
    assert "copied 2 files, 80 MiB" in check.message
    assert "data/ (2 files, 80 MiB)" in check.hint
    assert found(of(project, "data/x", "data/y", size=40 * 2**20, new=False)) == []


def test_an_existing_copy_is_not_new(tmp_path: Path) -> None:
    assert find_code(tmp_path, None).is_new
    take_snapshot(find_code(tmp_path, None))
    assert not find_code(tmp_path, None).is_new


def test_ignored_parts_of_a_repository_are_reported(project: Path) -> None:
    code = Code(project, [], [], {}, project, ignored=("core.worktree = /x in .git",))
    (check,) = found(code)
    assert check.message == "ignored: core.worktree = /x in .git"

"""Sending a project to another machine: only missing files are sent, and the copy is identical."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from clusterctl.launcher.config.sent import ClientData, Sent, SentFile, SentProject
from clusterctl.launcher.config.shown import SILENT
from clusterctl.launcher.submission.sent_code import LocalProject, received
from clusterctl.shared.errors import ConfigError


class Link:
    """Counts the bytes that pass, and can change them."""

    def __init__(self, project: LocalProject) -> None:
        self.project, self.questions, self.bytes, self.change = project, [], 0, lambda piece: piece

    def delivery(self) -> ClientData:
        sent = SentProject(str(self.project.path), self.project.tree, len(self.project.files), self.project.size)
        return ClientData(Sent("/", SentFile("/far.toml", ""), projects=(sent,)), self.ask)

    def ask(self, question: Mapping[str, object]) -> Iterator[bytes]:
        question = json.loads(json.dumps(question))
        self.questions.append(sorted(question))
        for piece in self.project.answer(dict(question)):
            self.bytes += len(piece)
            yield self.change(piece)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    (folder / "package").mkdir(parents=True)
    for number in range(50):
        (folder / "package" / f"é {number}.py").write_text(f"VALUE = {number}\n" * 200)
    (folder / "run.sh").write_text("exit\n")
    (folder / "run.sh").chmod(0o755)
    (folder / "link").symlink_to("run.sh")
    return folder


def send(project: Path, tmp_path: Path, change=None) -> tuple[Path, Link]:
    link = Link(LocalProject(project, tmp_path / "known", large=False, progress=SILENT))
    link.change = change or link.change
    return received(tmp_path / "runs", project, link.delivery(), SILENT).folder / "project", link


def test_the_copy_matches_and_only_changes_are_sent_again(project: Path, tmp_path: Path) -> None:
    there, first = send(project, tmp_path)
    assert first.questions == [["project"], ["files", "project"]]
    for path in project.rglob("*"):
        copy = there / path.relative_to(project)
        assert copy.is_symlink() == path.is_symlink()
        if path.is_file():
            assert copy.read_bytes() == path.read_bytes()
    assert (there / "run.sh").stat().st_mode & 0o100
    again, second = send(project, tmp_path)
    assert (again, second.questions) == (there, [])
    (project / "package" / "é 7.py").write_text("VALUE = 'new'\n")
    changed, third = send(project, tmp_path)
    assert changed != there
    assert (changed / "package" / "é 7.py").read_text() == "VALUE = 'new'\n"
    assert third.bytes < first.bytes + 100
    assert (there / "package" / "é 7.py").read_text().startswith("VALUE = 7\n"), "an earlier snapshot is unchanged"


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd", "a/../../b", ""])
def test_a_manifest_cannot_name_a_file_outside(project: Path, tmp_path: Path, name: str) -> None:
    link = Link(LocalProject(project, tmp_path / "known", large=False, progress=SILENT))
    link.project.manifest = json.dumps([[name, "0" * 40, 1, 0o644, None]]).encode()
    with pytest.raises(ConfigError):
        received(tmp_path / "runs", project, link.delivery(), SILENT)


def test_a_project_that_was_not_offered_is_not_sent(project: Path, tmp_path: Path) -> None:
    link = Link(LocalProject(project, tmp_path / "known", large=False, progress=SILENT))
    with pytest.raises(ConfigError):
        received(tmp_path / "runs", tmp_path / "other", link.delivery(), SILENT)

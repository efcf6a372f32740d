"""`image`: from the command line to the image folder and the output."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console
from support.images import file, write_archive
from support.json_schema import schema, violations

from clusterctl.launcher import cli
from clusterctl.launcher.display.terminal import shown

Typed = Callable[..., tuple[int, str, str]]


@pytest.fixture
def typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> Typed:
    """Runs `clusterctl image ...` in an empty folder, with its own data folder and cache."""
    for name in [name for name in os.environ if name.startswith(("CLUSTERCTL_", "CONTAINER_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("DATA", "CACHE", "CONFIG"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> tuple[int, str, str]:
        code = cli.run(["image", *words])
        out, err = capfdbinary.readouterr()
        return code, out.decode(), err.decode()

    return run


def test_an_archive_is_imported_listed_inspected_verified_and_removed(typed: Typed, tmp_path: Path) -> None:
    write_archive(tmp_path / "made.tar", [[file("x", b"1")]], Env=["A=1"])
    code, out, err = typed("import", "./made.tar")
    assert (code, out) == (0, f"{tmp_path}/data/clusterctl/images/made.sqsh\n"), err
    assert "reading made.tar\nwriting made.sqsh\nimported in" in err
    code, out, _ = typed("list")
    assert out.splitlines()[1].split()[0] == "made"
    assert out.splitlines()[1].split()[-1] == "made.tar"
    listed = json.loads(typed("list", "-o", "json")[1])
    assert [one["name"] for one in listed["images"]] == ["made"]
    assert violations(listed, schema("image-list")) == []
    inspected = json.loads(typed("inspect", "made")[1])
    assert inspected == {"schema_version": 1, **listed["images"][0]}
    assert violations(inspected, schema("image-inspect")) == []
    assert inspected["environment"] == {"A": "1"}
    assert typed("verify")[:2] == (0, "made: ok\n")
    Path(inspected["path"]).write_text("no squashfs any more")
    assert typed("verify", "made") == (1, "made: not a squashfs\n", "hint: build or import the image again\n")
    assert typed("prune", "made", "--yes")[0] == 0
    assert typed("list") == (0, "", f"no images in {tmp_path}/data/clusterctl/images\n")
    assert typed("prune")[2] == "nothing to remove\n"


def test_the_clusters_folder_is_used_and_another_can_be_named(typed: Typed, tmp_path: Path) -> None:
    write_archive(tmp_path / "made.tar", [[file("x")]])
    (tmp_path / "cluster").mkdir()
    (tmp_path / "cluster" / "site.toml").write_text(f'images = "{tmp_path}/shared"\n')
    assert typed("import", "./made.tar", "mine", "--cluster", "site")[1] == f"{tmp_path}/shared/mine.sqsh\n"
    assert typed("import", "made.tar", "--output", "here")[1] == f"{tmp_path}/here/made.sqsh\n"
    assert "mine" in typed("list", "--cluster", "site")[1]
    assert json.loads(typed("inspect", "./here/made.sqsh")[1])["name"] == "made"


@pytest.mark.parametrize(
    ("words", "code", "message", "hint"),
    [
        (("import", "./gone.tar"), 5, "no such file: gone.tar", "registry#name:tag"),
        (("import", "Bad//Ref"), 3, "neither a file nor an image reference: Bad//Ref", "nvcr.io#nvidia/pyg"),
        (("import", "x.sqsh"), 3, "relative path: x.sqsh", "./x.sqsh"),
        (("import", "python:3.11-slim", "--engine", "rocket"), 3, "no such engine: rocket", "docker, podman, buildah"),
        (("import", "python:3.11-slim"), 1, "docker, podman and buildah are not on PATH", "or install enroot"),
        (("build",), 1, "docker, podman and buildah are not on PATH", "apt install buildah"),
        (("build", "a,b"), 2, "invalid image name: 'a,b'", "letters, digits"),
        (("build", "--output", "x.sqsh"), 2, "not a folder: x.sqsh", "image build NAME"),
        (("inspect", "nothing"), 5, "no such image", "clusterctl image list"),
        (("verify", "./nothing.sqsh"), 5, "no such image: nothing.sqsh", ""),
        (("prune", "nothing"), 5, "no such image", ""),
        (("lost",), 2, "no such command 'lost'", "clusterctl image --help"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_mistakes_are_reported_with_a_hint(
    words: tuple[str, ...],
    code: int,
    message: str,
    hint: str,
    typed: Typed,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    found, out, err = typed(*words)
    assert (found, out) == (code, "")
    error, _, typed_next = err.partition("hint: ")
    assert message in error
    assert hint in typed_next
    assert "Traceback" not in err


def test_a_build_is_shown_by_steps_on_a_pipe_and_with_a_bar_on_a_terminal() -> None:
    for terminal in (False, True):
        console = Console(force_terminal=terminal, width=100, record=True, file=open(os.devnull, "w"))  # noqa: PTH123, SIM115
        with shown(console) as progress:
            progress.begin("building")
            progress.output("STEP 1/3 \x1b[31mhidden escape")
            progress.begin("writing", total=2**20)
            progress.advance(2**19)
            progress.advance(2**19)
        console.file.close()
        text = console.export_text()
        assert "building" in text
        assert "writing" in text
        assert "\x1b[31m" not in text
        assert ("1.0/1.0 MB" in text or "1.0/1.0" in text) == terminal, text

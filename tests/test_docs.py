"""The docs match the code."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def test_the_reference_matches_the_commands() -> None:
    program = "import runpy, sys; pages = runpy.run_path(sys.argv[1])['reference']()\n"
    program += "print(*(page for page, text in pages.items() if page.read_text() != text))"
    words = [sys.executable, "-c", program, ROOT / "docs" / "generate.py"]  # a separate process, like `make docs`
    stale = subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()
    assert not stale, "regenerate with: make docs"


def test_the_readmes_submit_commands_are_accepted(tmp_path: Path) -> None:
    """Run each as printed, but with --dry-run, in a project that contains only the program."""
    readme = (ROOT / "README.md").read_text()
    (tmp_path / "cluster").mkdir()
    (tmp_path / "train.py").touch()
    (tmp_path / "train.sbatch").write_text("#!/bin/bash\n")
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    commands = [line.strip() for line in readme.splitlines() if re.match(r"    (printf|clusterctl submit)", line)]
    assert len(commands) >= 4
    for command in commands:
        dry = re.sub(r"--dry-run=slurm|--follow", "", command).replace("submit", "submit --dry-run=script")
        done = subprocess.run(
            ["bash", "-c", dry], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{dry}\n{done.stderr}"


@pytest.mark.parametrize("page", [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")], ids=lambda path: path.name)
def test_links_and_paths_of_a_page_exist(page: Path) -> None:
    text = page.read_text()
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)  # a call in code may look like a link
    for target, anchor in re.findall(r"\]\(([^)#:]*)#?([^)#:]*)\)", prose):
        there = page.parent / target if target else page
        assert there.exists(), target
        assert not anchor or there.suffix != ".md" or anchor in anchors(there), f"{target}#{anchor}"
    for path in re.findall(r"`((?:src|docs|tests|jobs|cluster|benchmarks)/[\w./-]+)`", text):
        assert (ROOT / path).exists() or "NAME" in path, path


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as mkdocs derives them."""
    titles = re.findall(r"^#+ (.*)", page.read_text(), re.MULTILINE)
    return {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", title).strip().lower()) for title in titles}


def test_the_index_of_decisions_lists_every_page_and_every_former_number() -> None:
    folder = ROOT / "docs" / "decisions"
    index = (folder / "index.md").read_text()
    listed = re.findall(r"^- \[[^]]+\]\(([\w-]+\.md)\)", index, re.MULTILINE)
    assert sorted(listed) == sorted(path.name for path in folder.glob("*.md") if path.stem != "index")
    assert [int(number) for number in re.findall(r"^\| (\d+) \|", index, re.MULTILINE)] == [*range(1, 83)]


@pytest.mark.skipif(shutil.which("groff") is None, reason="no groff")
def test_the_manual_pages_are_formatted_without_a_warning_and_with_every_option() -> None:
    pages = sorted((ROOT / "docs" / "man").glob("*.1"))
    done = subprocess.run(
        ["groff", "-man", "-Tascii", "-ww", "-P-c", "-rLL=200n", *pages], capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    text = re.sub(".\b", "", done.stdout)  # bold is struck twice
    listed = " ".join(re.findall("<code>(.*?)</code>", (ROOT / "docs/reference/commands/submit.md").read_text()))
    for option in {*re.findall(r"--[a-z][a-z-]+", listed)}:
        assert option in text, option


def test_the_page_about_security_lists_the_keys_whose_code_runs_at_submission() -> None:
    page = (ROOT / "docs" / "security.md").read_text()
    rows = dict(re.findall(r"^\| `(environment(?:_builds)?)` \| (.+) \|$", page, re.MULTILINE))
    assert "no code of the packages runs" in rows["environment"]
    assert "their code runs on the login node" in rows["environment_builds"]

"""Style and types, checked as tests."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize(
    "words", ["ruff check .", "ruff format --check .", "mypy src", pytest.param("mypy", marks=pytest.mark.long)]
)
def test_the_source_passes_ruff_and_mypy(words: str) -> None:
    program, *rest = words.split()
    done = subprocess.run(
        [Path(sys.executable).with_name(program), *rest], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.long
@pytest.mark.parametrize(
    ("schema", "files"),
    [
        ("vendor.github-workflows", ".github/workflows/*.yml"),
        ("custom.github-workflows-require-timeout", ".github/workflows/*.yml"),
        ("vendor.citation-file-format", "CITATION.cff"),
    ],
)
def test_files_for_the_hosting_page_have_the_form_that_it_reads(schema: str, files: str) -> None:
    """By schemas that come with the checker: nothing is fetched."""
    found = sorted(ROOT.glob(files))
    program = Path(sys.executable).with_name("check-jsonschema")
    words = [program, "--builtin-schema", schema, *found]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (bool(found), done.returncode) == (True, 0), done.stdout + done.stderr


def test_the_map_of_what_tests_share_names_every_module() -> None:
    page = (ROOT / "tests" / "support" / "README.md").read_text()
    modules = {path.stem for path in (ROOT / "tests" / "support").glob("*.py")}
    firsts = {name for line in page.splitlines() for name in re.findall(r"`(\w+)`", line.split(" | ")[0])}
    assert firsts <= modules
    assert {name for name in modules if f"`{name}`" not in page} == set()

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
def test_githubs_workflows_have_the_form_that_github_reads() -> None:
    """By the schema that comes with the checker: nothing is fetched."""
    workflows = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
    program = Path(sys.executable).with_name("check-jsonschema")
    words = [program, "--builtin-schema", "vendor.github-workflows", *workflows]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (bool(workflows), done.returncode) == (True, 0), done.stdout + done.stderr


def test_the_map_of_what_tests_share_names_every_module() -> None:
    page = (ROOT / "tests" / "support" / "README.md").read_text()
    modules = {path.stem for path in (ROOT / "tests" / "support").glob("*.py")}
    firsts = {name for line in page.splitlines() for name in re.findall(r"`(\w+)`", line.split(" | ")[0])}
    assert firsts <= modules
    assert {name for name in modules if f"`{name}`" not in page} == set()

"""A reintroduced bug: a copy of the package with one expression changed, and the tests that run on it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "clusterctl"
_FAILED = re.compile(r"^(?:FAILED|ERROR) tests/(\S+?::\w+)", re.MULTILINE)


@dataclass(frozen=True)
class Mutation:
    """Replaces `old`, which occurs once in `file` of the package, by `new`."""

    file: str
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.file}: {self.old} -> {self.new}"

    def source(self) -> str:
        """The changed file. Raises an exception if `old` does not occur exactly once or the result is not Python."""
        text = (PACKAGE / self.file).read_text()
        assert text.count(self.old) == 1, f"{self.file} contains this {text.count(self.old)} times: {self.old}"
        changed = text.replace(self.old, self.new)
        compile(changed, self.file, "exec")
        return changed

    def failing(self, folder: Path, tests: Iterable[str]) -> tuple[set[str], str]:
        """Those of `tests` (file::function, below tests/) that fail with the bug, and pytest's output."""
        package = folder / "src" / "clusterctl"
        shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
        (package / self.file).write_text(self.source())
        for shipped in ("jobs", "cluster", "data", "containers"):  # where the package looks for them
            (folder / shipped).symlink_to(ROOT / shipped)
        words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *(f"tests/{test}" for test in tests)]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        done = subprocess.run(
            words,
            cwd=ROOT,
            env=environment | {"PYTHONPATH": str(package.parent), "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            timeout=1200,
            check=False,
        )
        return set(_FAILED.findall(done.stdout)), done.stdout + done.stderr

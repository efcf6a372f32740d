"""Where programs find Python, torchrun and the like, as far as that is known before the batch script runs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from clusterctl.launch.plan import Plan

# Lines that appear to put another folder on PATH.
_SELECTS = re.compile(r"\bactivate\b|\bPATH=|^\s*(?:module|ml|spack)\s")
_SOURCED = re.compile(
    r"""^\s*(?:source|\.)\s+(?:"(?P<double>[^"$`\\]+)"|'(?P<single>[^']+)'|(?P<bare>[^\s"'$`\\~*?;&|]+))"""
    r"""(?:[ \t]+(?P<argument>[^\s"'$`\\~*?;&|#]+))?"""
)


def activated_environments(python: str, setup: Iterable[str]) -> Iterator[str]:
    """The Python environments of the interpreter `python` and of the setup lines, as far as they can be recognised.

    Recognised lines are `source ENV/bin/activate` for a venv and `source CONDA/bin/activate NAME`.
    """
    if python.startswith("/"):
        yield python.rpartition("/")[0].removesuffix("/bin")
    for line in setup:
        path, argument = _sourced(line)
        folder = path.removesuffix("/bin/activate")
        if folder != path:
            yield argument if argument.startswith("/") else f"{folder}/envs/{argument}" if argument else folder


def _sourced(line: str) -> tuple[str, str]:
    """The path that a setup line sources, and its first argument; empty if they need expansion."""
    match = _SOURCED.match(line)
    return (match["double"] or match["single"] or match["bare"], match["argument"] or "") if match else ("", "")


@dataclass(frozen=True)
class Programs:
    """Which Python comes first on the tasks' PATH (decided on the first node by `put_first` of batch.sh)."""

    python: str
    named: bool  # by the cluster file
    setup: Sequence[str] = ()
    in_image: bool = False

    @classmethod
    def of(cls, plan: Plan) -> Programs:
        return cls(plan.python, plan.python_is_named, plan.setup, plan.view is not None)

    @property
    def folder(self) -> str:
        return self.python.rpartition("/")[0] or f"the folder of {self.python}"

    @property
    def selecting(self) -> tuple[str, ...]:
        """The setup lines that may select another Python."""
        if self.named or self.in_image:
            return ()
        return tuple(line for line in self.setup if _SELECTS.search(line))

    @property
    def sourced(self) -> Iterator[str]:
        """The paths that the setup lines source, except those that need expansion."""
        for line in self.setup:
            if "/" in (path := _sourced(line)[0]):
                yield path

    def __str__(self) -> str:
        place = self.folder + " in the image" * self.in_image
        if self.selecting:
            place = f"the environment that `{'; '.join(self.selecting)}` sets up, otherwise from {place}"
        return f"programs such as python and torchrun come from {place}"

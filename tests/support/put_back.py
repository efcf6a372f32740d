"""Puts one bug of `published_bugs` back, into every Python process that starts below a test.

A bug has a seam: a function or a method of one module. A finder waits for that module and replaces the seam as soon as
the module has been executed, before any other module can take the right one. Standard library only: `sitecustomize`
calls `install` in all processes, most of which have nothing to do with the bug.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from functools import reduce
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

_TESTS = Path(__file__).resolve().parents[1]


class _Finder:
    """Finds `module` as the other finders do, and calls for the bug once it has been executed."""

    def __init__(self, module: str, bug: str) -> None:
        self._module, self._bug = module, bug

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        del path, target
        if name != self._module:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.loader is not None
        execute = spec.loader.exec_module

        def executed(module: ModuleType) -> None:
            execute(module)
            put_back(self._bug)

        spec.loader.exec_module = executed  # type: ignore[method-assign]
        return spec


def install(module: str, bug: str) -> None:
    """Put `bug` back as soon as this process has imported `module`."""
    sys.meta_path.insert(0, _Finder(module, bug))


def put_back(name: str) -> None:
    """Replace the seam of the bug by its wrong version."""
    if str(_TESTS) not in sys.path:
        sys.path.append(str(_TESTS))
    from support.published_bugs import BY_NAME

    bug = BY_NAME[name]
    *owners, last = bug.seam.split(".")
    owner = reduce(getattr, owners, sys.modules[bug.module])
    setattr(owner, last, bug.wrong(getattr(owner, last)))


def startup(folder: Path, module: str, bug: str) -> Path:
    """A folder for PYTHONPATH with which all processes put the bug back."""
    folder.mkdir()
    text = f"import runpy\nrunpy.run_path({__file__!r})['install']({module!r}, {bug!r})\n"
    (folder / "sitecustomize.py").write_text(text)
    return folder

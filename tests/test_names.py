"""Class names are unique in the package."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import clusterctl

SOURCE = Path(clusterctl.__file__).parent


def shared_names(modules: dict[str, str]) -> dict[str, list[str]]:
    """Class -> the modules that define it, if there are several; `modules` maps names to sources."""
    places = defaultdict(list)
    for module, text in modules.items():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(module)
    return {name: found for name, found in places.items() if len(found) > 1}


def test_no_two_classes_share_a_name() -> None:
    modules = {str(path.relative_to(SOURCE)): path.read_text() for path in sorted(SOURCE.rglob("*.py"))}
    assert shared_names(modules) == {}


def test_shared_names_include_nested_classes() -> None:
    modules = {"a.py": "class Row: pass", "b.py": "def f():\n    class Row: pass", "c.py": "class Other: pass"}
    assert shared_names(modules) == {"Row": ["a.py", "b.py"]}

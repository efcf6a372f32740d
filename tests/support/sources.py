"""What the modules of the package import, call and define; each is parsed once in a process."""

from __future__ import annotations

import ast
import functools
from dataclasses import dataclass, field
from pathlib import Path

import clusterctl

SOURCE = Path(clusterctl.__file__).parent


@dataclass
class Source:
    """One module, or a text like one. `called` names the functions and methods that are called anywhere in it.

    Of its imports, those for type checking alone are in `for_types`, too.
    """

    imports: list[ast.Import | ast.ImportFrom] = field(default_factory=list)
    for_types: list[ast.AST] = field(default_factory=list)
    called: set[str] = field(default_factory=set)
    classes: list[str] = field(default_factory=list)


def source_of(text: str) -> Source:
    found = Source()
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Call(func=ast.Attribute(attr=name)) | ast.Call(func=ast.Name(id=name)):
                found.called.add(name)
            case ast.Import() | ast.ImportFrom():
                found.imports.append(node)
            case ast.ClassDef(name=name):
                found.classes.append(name)
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                found.for_types += ast.walk(node)
    return found


@functools.cache
def sources() -> dict[Path, Source]:
    """The modules in order, by their paths below the package's folder."""
    return {path.relative_to(SOURCE): source_of(path.read_text()) for path in sorted(SOURCE.rglob("*.py"))}

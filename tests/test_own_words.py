"""No module matches a message that another module of ours writes: causes are passed as values.

Checked statically, for every literal that text is compared with, searched for or stripped of, directly or through a
module's constant, and for the names of our exceptions. Regular expressions are left out: those for other programs are
general enough to match some of our messages, too.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

import clusterctl

SOURCE = Path(clusterctl.__file__).parent
STAND_INS = "emulator"  # they write Slurm's messages
# Messages of Slurm, pip and the engines, which ours or our patterns for them contain, too.
TERMS = {"FATAL ERROR:", "No matching distribution", "contact slurm controller", "no space left", "not found"}
TERMS |= {"not supported", "pending execution", "out of memory", "Out Of Memory", "timed out", "unable to contact"}
SEARCHES = {"startswith", "endswith", "removeprefix", "removesuffix", "find", "rfind", "index", "rindex", "count"}
SEARCHES |= {"partition", "rpartition", "split", "rsplit"}
SENTENCE = re.compile(r"[a-z]{2,}\W* +\W*[a-z]{2,}", re.IGNORECASE)
Constants = Mapping[str, list[ast.expr]]


def searched(tree: ast.Module) -> Iterator[ast.expr]:
    """What text is compared with or searched for."""
    for node in ast.walk(tree):
        match node:
            case ast.Compare(left=left, ops=[ast.In() | ast.NotIn()], comparators=[right]):
                yield left
                yield from [right] if isinstance(right, ast.Tuple | ast.List | ast.Set) else []
            case ast.Compare(left=left, ops=[ast.Eq() | ast.NotEq()], comparators=[right]):
                yield from (left, right)
            case ast.Call(func=ast.Attribute(attr=method), args=[argument, *_]) if method in SEARCHES:
                yield argument
            case ast.MatchValue(value=value):
                yield value
            case ast.GeneratorExp(elt=ast.Compare(left=ast.Name()), generators=[ast.comprehension(iter=words)]):
                yield words  # any(word in text for word in words)


def literals(node: ast.expr, constants: Constants) -> Iterator[ast.expr]:
    match node:
        case ast.Constant() | ast.JoinedStr():
            yield node
        case ast.Tuple(elts=parts) | ast.List(elts=parts) | ast.Set(elts=parts):
            for part in parts:
                yield from literals(part, constants)
        case ast.Name(id=name):
            for value in constants.get(name, ()):
                yield from literals(value, {})


def texts(node: ast.expr) -> list[str]:
    """The contiguous texts of a literal."""
    parts = node.values if isinstance(node, ast.JoinedStr) else [node]
    found = [part.value for part in parts if isinstance(part, ast.Constant)]
    return [text.decode(errors="replace") if isinstance(text, bytes) else str(text) for text in found]


def echoes(sources: Mapping[str, str]) -> list[str]:
    """Where a module matches what another one writes."""
    trees = {name: ast.parse(text) for name, text in sources.items() if name.endswith(".py")}
    constants: dict[str, list[ast.expr]] = {}
    exceptions = set()
    for tree in trees.values():
        for node in tree.body:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                constants.setdefault(node.targets[0].id, []).append(node.value)
            if isinstance(node, ast.ClassDef) and node.name.endswith(("Error", "Failed", "Exit")):
                exceptions.add(node.name)
    matched: dict[str, set[str]] = {}
    written = {name: text for name, text in sources.items() if name.endswith(".sh")}
    for name, tree in trees.items():
        found = [literal for node in searched(tree) for literal in literals(node, constants)]
        words = {text.strip() for literal in found for text in texts(literal)}
        matched[name] = {text for text in words if SENTENCE.search(text) or text in exceptions}
        matched[name] -= TERMS
        inside = {part for literal in found for part in ast.walk(literal)}
        inside |= {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}  # docstrings
        others = (node for node in ast.walk(tree) if node not in inside and isinstance(node, ast.Constant))
        written[name] = "\n".join(text for node in others for text in texts(node))
        written[name] += "".join(f"\n{node.name}" for node in tree.body if isinstance(node, ast.ClassDef))
    return [
        f"{reader} matches {text!r} of {writer}"
        for reader, wanted in matched.items()
        for writer, everything in written.items()
        if writer != reader and STAND_INS not in writer.split("/")
        for text in sorted(wanted)
        if text in everything
    ]


@pytest.mark.long
def test_no_module_matches_a_message_of_another_module() -> None:
    files = [path for path in SOURCE.rglob("*") if path.suffix in (".py", ".sh")]
    assert echoes({str(path.relative_to(SOURCE)): path.read_text() for path in files}) == []


WRITER = """
class TaskError(Exception): pass
def ended(argv, code):
    raise TaskError(f"{argv} exited with {code}" if code > 0 else f"{argv} was killed by {code}", "try it by hand")
"""
SHELL = 'echo "clusterctl: not started again: $why"'


@pytest.mark.parametrize(
    "reader",
    [
        'found = [line for line in lines if line.startswith("clusterctl: not started again")]',
        '_AGAIN = "clusterctl: not started again"\nfound = [line for line in lines if line.startswith(_AGAIN)]',
        'ended = any(words in text for words in (" exited with ", " was killed by "))',
        'code = text.partition(" was killed by ")[2]',
        'match text:\n    case "try it by hand": pass',
        'ours = raised.type == "TaskError"',
    ],
)
def test_matching_our_own_messages_is_found(reader: str) -> None:
    assert echoes({"a.py": WRITER, "a.sh": SHELL, "b.py": reader}) != []
    assert echoes({"a.py": reader, "emulator/b.py": WRITER}) == []


@pytest.mark.parametrize(
    "reader",
    [
        'if line.startswith("srun: error: Node failure on"): pass',
        'if text.startswith("killed"): pass',  # a single word, not a message
        'print(f"{name} exited with {code}")',
    ],
)
def test_matching_messages_of_other_programs_is_allowed(reader: str) -> None:
    assert echoes({"a.py": WRITER, "a.sh": SHELL, "b.py": reader}) == []

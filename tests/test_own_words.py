"""No module parses an English message that another module of ours writes: causes are passed as values.

Checked statically: every literal that is compared with text, searched in it or stripped from it, directly or through a
name, against every literal that is written, and against the names of our exceptions. Patterns for messages of Slurm,
NCCL and Python must match none of ours.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from re import _constants as sre_constants  # type: ignore[attr-defined]
from re import _parser as sre_parse  # type: ignore[attr-defined]
from typing import Any

import pytest

import clusterctl

SOURCE = Path(clusterctl.__file__).parent
STAND_INS = ("emulator",)  # they write Slurm's messages
# The list of types that answers may contain is compared with names of types, never with a message.
# Terms of Slurm, the C library and the engines that our own messages use too.
TERMS = {
    "time limit",
    "in partition",
    "generic resource",
    "no space left",
    "out of memory",
    "not supported",
    "no such image",
    "disk is full",
    "bus error",
    "floating point exception",
    "illegal instruction",
    "segmentation fault",
    "command not found",
    "not found",
    "exit code",
    "last error:",
    "could not",
}
_METHODS = {"startswith", "endswith", "removeprefix", "removesuffix", "find", "rfind", "index", "rindex", "count"}
_METHODS |= {"partition", "rpartition", "split", "rsplit"}
_SENTENCE = re.compile(r"[a-z]{2,}[^\w\n]* +[^\w\n]*[a-z]{2,}", re.IGNORECASE)
_ANYTHING = "\0"  # a placeholder of an f-string


@dataclass
class Module:
    """The messages (and names of our exceptions) that a module matches, and the literals it writes."""

    name: str
    matched: set[str] = field(default_factory=set)
    written: set[str] = field(default_factory=set)
    patterns: dict[str, set[str]] = field(default_factory=dict)  # those that `matched` words are part of

    def reads(self, words: str, writer: Module) -> bool:
        """Whether a whole pattern with these words, and not just the words, matches a literal of `writer`."""
        messages = [text for text in writer.written if words in text]
        patterns = [re.compile(pattern.replace(_ANYTHING, ".*"), re.IGNORECASE) for pattern in self.patterns[words]]
        return any(pattern.search(text) for pattern in patterns for text in messages)


def words_of(sources: Mapping[str, str]) -> list[Module]:
    trees = {name: ast.parse(text) for name, text in sources.items() if name.endswith(".py")}
    constants: dict[str, list[ast.expr]] = {}
    for tree in trees.values():
        for name, value in _assigned(tree.body):
            constants.setdefault(name, []).append(value)
    raised = {name for tree in trees.values() for name in _exceptions(tree)}
    modules = [_words_of(name, tree, constants, raised) for name, tree in trees.items()]
    shells = [(name, text.lower()) for name, text in sources.items() if name.endswith(".sh")]
    return modules + [Module(name, written=set(re.findall(r"(?:echo|printf) .*", text))) for name, text in shells]


def _words_of(name: str, tree: ast.Module, constants: Mapping[str, list[ast.expr]], raised: set[str]) -> Module:
    found = Module(name, written={name.lower() for name in _exceptions(tree)})
    matched: set[ast.AST] = set()
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names}
    bound = {variable: values for variable, values in constants.items() if variable in imported}
    for variable, value in _bound(tree):
        bound[variable] = [*bound.get(variable, []), value]
    for expression, is_pattern in _matching(tree):
        for literal in _literals(expression, bound, set()):
            matched.update(ast.walk(literal))
            runs = _runs_of(_text(literal)) if is_pattern else _text(literal).split(_ANYTHING)
            words = {run.strip().lower() for run in runs if _SENTENCE.search(run) or run in raised}
            found.matched |= words
            for run in words:
                found.patterns.setdefault(run, set()).add(_text(literal) if is_pattern else re.escape(run))
    documented = {ast.get_docstring(node, clean=False) for node in ast.walk(tree) if isinstance(node, _DOCUMENTED)}
    inner = {part for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if node not in matched and node not in inner and isinstance(node, ast.Constant | ast.JoinedStr):
            text = _text(node)
            if text and text not in documented:
                found.written.add(text.lower())
    return found


def _exceptions(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            bases = [base.id for base in node.bases if isinstance(base, ast.Name)]
            if any(base.endswith(("Error", "Exception", "Exit")) for base in bases):
                yield node.name


def _runs_of(pattern: str) -> Iterator[str]:
    """The contiguous literal texts in a pattern."""
    try:
        yield from _runs_in(sre_parse.parse(pattern.replace(_ANYTHING, ".")))
    except re.error:
        return  # not a pattern: another function with the same name


def _runs_in(parsed: Any) -> Iterator[str]:
    run = ""
    for kind, value in parsed:
        if kind is sre_constants.LITERAL:
            run += chr(value)
            continue
        yield run
        run = ""
        inner = value[1] if kind is sre_constants.BRANCH else value if isinstance(value, tuple | list) else ()
        for part in inner:
            if isinstance(part, sre_parse.SubPattern):
                yield from _runs_in(part)
    yield run


_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def _matching(tree: ast.Module) -> Iterator[tuple[ast.expr, bool]]:
    """The expressions that text is matched with, and whether each is a pattern."""
    compiling = dict(_compiling(tree))
    for node in ast.walk(tree):
        match node:
            case ast.Compare(left=left, ops=ops, comparators=comparators):
                for a, operator, b in zip([left, *comparators], ops, comparators, strict=False):
                    if isinstance(operator, ast.In | ast.NotIn):
                        yield a, False
                        if isinstance(b, ast.Tuple | ast.List | ast.Set):
                            yield b, False
                    elif isinstance(operator, ast.Eq | ast.NotEq):
                        yield from ((side, False) for side in (a, b))
            case ast.Call(func=ast.Attribute(value=ast.Name(id="re")), args=[pattern, *_]):
                yield pattern, True
            case ast.Call(func=ast.Attribute(attr=method), args=[argument, *_]) if method in _METHODS:
                yield argument, False
            case ast.Call(func=ast.Name(id=function), args=arguments) if function in compiling:
                yield from ((arguments[at], True) for at in compiling[function] if at < len(arguments))
            case ast.MatchValue(value=value):
                yield value, False


def _compiling(tree: ast.Module) -> Iterator[tuple[str, list[int]]]:
    """Functions that compile arguments to patterns, and the positions of these arguments."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            names = [argument.arg for argument in node.args.args]
            used = [pattern for call in ast.walk(node) if (pattern := _pattern_of(call)) is not None]
            if at := [names.index(name.id) for name in used if isinstance(name, ast.Name) and name.id in names]:
                yield node.name, at


def _pattern_of(node: ast.AST) -> ast.expr | None:
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Name(id="re")), args=[pattern, *_]):
            return pattern
    return None


def _assigned(body: list[ast.stmt]) -> Iterator[tuple[str, ast.expr]]:
    for node in body:
        if isinstance(node, ast.Assign):
            yield from ((target.id, node.value) for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value:
            yield node.target.id, node.value


def _bound(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    """Every name in the module, with the values assigned to it or iterated over."""
    statements = [node for node in ast.walk(tree) if isinstance(node, ast.stmt)]
    yield from _assigned(statements)
    for node in ast.walk(tree):
        if isinstance(node, ast.For | ast.comprehension):
            targets = enumerate(node.target.elts) if isinstance(node.target, ast.Tuple) else [(None, node.target)]
            for at, target in targets:
                if isinstance(target, ast.Name):
                    yield target.id, node.iter if at is None else ast.Subscript(node.iter, ast.Constant(at))
        elif isinstance(node, ast.NamedExpr):
            yield node.target.id, node.value


def _literals(node: ast.expr, bound: Mapping[str, list[ast.expr]], seen: set[str]) -> Iterator[ast.expr]:
    """The literals that an expression may evaluate to."""
    match node:
        case ast.Constant(value=str() | bytes()) | ast.JoinedStr():
            yield node
        case ast.Name(id=name) if name not in seen:
            for value in bound.get(name, []):
                yield from _literals(value, bound, seen | {name})
        case ast.Tuple(elts=parts) | ast.List(elts=parts) | ast.Set(elts=parts):
            for part in parts:
                yield from _literals(part, bound, seen)
        case ast.Dict(keys=keys):
            for key in keys:
                yield from _literals(key, bound, seen) if key else ()
        case ast.Subscript(value=value, slice=ast.Constant(value=int(at))):  # one column of the rows of a loop
            for row in _rows(value, bound):
                yield from _literals(row[at], bound, seen) if at < len(row) else ()
        case ast.BinOp(left=left, right=right):
            yield from _literals(left, bound, seen)
            yield from _literals(right, bound, seen)
        case ast.IfExp(body=first, orelse=second):
            yield from _literals(first, bound, seen)
            yield from _literals(second, bound, seen)
        case ast.Call(func=ast.Attribute(value=value, attr="keys" | "lower" | "encode")):
            yield from _literals(value, bound, seen)


def _rows(node: ast.expr, bound: Mapping[str, list[ast.expr]]) -> Iterator[list[ast.expr]]:
    match node:
        case ast.Name(id=name):
            for value in bound.get(name, []):
                yield from _rows(value, bound) if value is not node else ()
        case ast.Tuple(elts=rows) | ast.List(elts=rows):
            yield from (row.elts for row in rows if isinstance(row, ast.Tuple | ast.List))
        case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="items")):
            for value in bound.get(name, []):
                if isinstance(value, ast.Dict):
                    yield from ([key, item] for key, item in zip(value.keys, value.values, strict=True) if key)


def _text(node: ast.expr) -> str:
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.Constant(value=bytes(text)):
            return text.decode(errors="replace")
        case ast.JoinedStr(values=parts):
            return "".join(_text(part) if isinstance(part, ast.Constant) else _ANYTHING for part in parts)
    return ""


def echoes(modules: list[Module]) -> list[str]:
    """Matches of one module's messages by another."""
    found = []
    for reader in modules:
        for writer in modules:
            if writer.name == reader.name or writer.name.split("/")[0] in STAND_INS:
                continue
            everything = "\n".join(writer.written)
            ours = sorted(words for words in reader.matched - TERMS if words in everything)
            taken = [words for words in ours if reader.reads(words, writer)]
            found += [f"{reader.name} matches {words!r} of {writer.name}" for words in taken]
    return found


@pytest.mark.long
def test_no_module_matches_a_message_of_another_module() -> None:
    files = [path for path in SOURCE.rglob("*") if path.suffix in (".py", ".sh")]
    modules = words_of({str(path.relative_to(SOURCE)): path.read_text() for path in files})
    assert echoes(modules) == []
    assert set().union(*(module.matched for module in modules)) >= TERMS


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
        'if text.endswith("try it by hand"): pass',
        'code = text.partition(" exited with ")[2]',
        '_ROW = re.compile(r"exited with \\\\d+|(was|is) killed by")',
        'def _row(pattern, cause): return re.compile(pattern), cause\n_TABLE = [_row(r"was killed by", 1)]',
        '_HINTS = {"was killed by": "a hint"}\nhint = [hint for part, hint in _HINTS.items() if part in text]',
        'match text:\n    case "try it by hand": pass',
        'ours = raised.type == "TaskError"',
    ],
)
def test_matching_our_own_messages_is_found(reader: str) -> None:
    assert echoes(words_of({"a.py": WRITER, "a.sh": SHELL, "b.py": reader})) != []
    assert echoes(words_of({"a.py": reader, "emulator/b.py": WRITER})) == []


@pytest.mark.parametrize(
    "reader",
    [
        'if line.startswith("srun: error: Node failure on"): pass',
        'if text.startswith("killed"): pass',  # a single word, not a message
        'print(f"{name} exited with {code}")',
        'message = {"exited with": 1}',
    ],
)
def test_matching_messages_of_other_programs_is_allowed(reader: str) -> None:
    assert echoes(words_of({"a.py": WRITER, "a.sh": SHELL, "b.py": reader})) == []

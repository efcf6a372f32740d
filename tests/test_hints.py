"""Every command in a hint or a suggestion of the source can be typed: it exists, and has the options named.

Found in the source, so that a hint is checked where it is made, whether or not another test provokes it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from clusterctl.launcher import cli

SOURCE = Path(cli.__file__).parents[1]
ROOT = Path(__file__).resolve().parents[1]
HOLE = "§"  # in place of a value that is known only when the hint is made
# What the user must fill in, since nothing typed so far names it. Every other hint works as it is.
PLACEHOLDERS = {
    *("submit JOB", "submit JOB --sweep", "alloc JOB", "track RUN", "why RUN", "status --cluster NAME"),
    *("status SWEEP --metric NAME", "status --watch SWEEP", "nodes --for JOB --set KEY=VALUE"),
    *(
        "submit JOB --dry-run",
        "rerun RUN --dry-run",
        "nodes --for JOB",
        "config show JOB",
        "status RUN",
        "status SWEEP",
    ),
    *(
        "logs RUN --tail 100",
        "attach § -- COMMAND",
        "submit § -- ARGUMENTS",
        "data prepare § --root DIR§",
        "image build --base IMAGE",
        "init NAME",
        "resume § --sweep KEY=VALUES",
        "submit JOB --set KEY=VALUE",
        "submit JOB --sweep KEY=VALUES",
        "submit JOB --hold",
        "submit JOB --wait",
        "logs RUN",
    ),
}


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """The string literals of a file with their lines, f-strings with `HOLE` for each value; docstrings left out."""
    tree = ast.parse(path.read_text())
    described = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield (
                node.lineno,
                "".join(str(part.value) if isinstance(part, ast.Constant) else HOLE for part in node.values),
            )
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and not {id(node)} & (described | parts):
            yield node.lineno, node.value


def commands_in(text: str) -> Iterator[list[str]]:
    """The command lines of clusterctl in a text: words up to the end of the sentence."""
    for found in re.finditer(r"(?<![\w./-])clusterctl (?P<rest>[a-z-][^\n;`()]*)", text):
        rest = re.split(r": |, | \.\.\.|\.\.\.| && | or | \||\.$", found["rest"])[0]
        words = rest.split()
        if words and words[0] in cli.COMMANDS:
            yield words


@pytest.fixture(scope="module")
def found() -> set[tuple[str, str]]:
    """The places and commands."""
    return {
        (f"{path.relative_to(SOURCE)}:{line}", " ".join(words))
        for path in SOURCE.rglob("*.py")
        if "clusterctl " in path.read_text()
        for line, text in texts(path)
        for words in commands_in(text)
    }


def test_the_hints_of_the_source_are_found(found: set[tuple[str, str]]) -> None:
    assert len(found) > 100
    assert any(command.startswith("why ") for _, command in found)
    assert [*commands_in("use: clusterctl logs 1 -f; or clusterctl why 1")] == [["logs", "1", "-f"], ["why", "1"]]


def test_hints_have_placeholders_only_where_nothing_is_known(found: set[tuple[str, str]]) -> None:
    assert {command for _, command in found if re.search(r"\b[A-Z]{3,}\b", command)} <= PLACEHOLDERS


def test_suggested_commands_exist_with_their_options(found: set[tuple[str, str]]) -> None:
    assert not [problem for place, command in sorted(found) if (problem := wrong_in(place, command.split()))]


@pytest.mark.parametrize(
    ("typed", "wrong"),
    [
        ("status --all-jobs", ""),
        ("logs § --tail 100", ""),
        ("cancel", "Missing argument"),
        ("logs", "Missing argument"),
        ("attach § --rank first", "Invalid value"),
        ("status --no-such", "no such option"),
        ("submit --hold", "nothing to submit"),
        ("submit -- python train.py", ""),
    ],
)
def test_an_incomplete_command_is_found(typed: str, wrong: str) -> None:
    found = wrong_in("here", typed.split())
    assert wrong in found
    assert bool(found) == bool(wrong)


MENTIONED = {"release"}  # in the help of an option, where the run does not exist yet


def wrong_in(place: str, words: list[str]) -> str:
    """What cannot be typed of a command, such as an unknown option or a missing argument; empty if all can."""
    command = " ".join(words)
    if command in MENTIONED:
        return ""
    group: click.Command = cli.clusterctl
    context = click.Context(group, info_name="clusterctl")
    while words and isinstance(group, click.Group) and words[0] in group.list_commands(context):
        if (inner := group.get_command(context, words.pop(0))) is None:
            return f"{place}: {command}: no such command"
        group, context = inner, click.Context(inner, context, info_name=inner.name)
    names = {name for one in group.get_params(context) for name in (*one.opts, *one.secondary_opts)} | {"-h", "--help"}
    typed = words[: words.index("--")] if "--" in words else words
    given = [re.split(f"[={HOLE}]", word)[0] for word in typed if re.match(r"--?[a-zA-Z]", word)]
    unknown = [option for option in given if option not in names]
    if unknown:
        return f"{place}: clusterctl {command}: no such option: {', '.join(unknown)}"
    try:
        parsed = group.make_context(str(group.name), [word.replace(HOLE, "1") for word in words], parent=context.parent)
    except click.UsageError as error:
        chosen_later = HOLE in command and isinstance(getattr(error, "param", None) and error.param.type, click.Choice)
        return "" if chosen_later else f"{place}: clusterctl {command}: {error.format_message()}"
    if group.name == "submit" and not parsed.params.get("job") and "--" not in words:
        return f"{place}: clusterctl {command}: nothing to submit"
    return ""


def test_no_text_asks_to_install_clusterctl_from_an_index_where_the_name_may_be_another_projects() -> None:
    asking = re.compile(r"\b(pip|pipx|uv|tool) (install|add)( [^\s:;|&]+)* [`'\"]?clusterctl(\[|==|[\s'\"`]|$)")
    assert asking.search("pip install --user 'clusterctl[dashboard]'")
    assert asking.search("or use: uv tool install clusterctl")
    assert not asking.search("pip install wandb, or use: clusterctl track RUN")
    assert [place for path in SOURCE.rglob("*.py") for _, place in texts(path) if asking.search(place)] == []
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    assert [line for page in pages for line in page.read_text().splitlines() if asking.search(line)] == []

"""Reference pages of the commands, generated from click's objects."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Iterator

    from guide_index import GuideIndex

INTRODUCTION = """# Commands

Generated from `--help`. RUN is a run's id, the beginning of one, a job's name (its newest run), `@last`,
`@failed`, or the ID of its Slurm job. JOBID is any Slurm job: 123, 123_4.

| command | |
| --- | --- |
"""


def command_pages(guides: GuideIndex) -> dict[str, str]:
    """Name of the page -> its text."""
    commands = dict(commands_below(root()))
    rows = [
        f"| [`{path}`]({file_name(path)}) | {escaped(command.get_short_help_str(200))} |\n"
        for path, (command, _) in commands.items()
    ]
    pages = {file_name(path): _page(path, *found, guides) for path, found in commands.items()}
    return {"index.md": INTRODUCTION + "".join(rows), **pages}


def man_pages(version: str) -> dict[str, str]:
    """Name of the manual page -> its text, in the macros of man(7)."""
    top = root()
    commands = {"clusterctl": top, **dict(commands_below(top))}
    return {f"{path.replace(' ', '-')}.1": _man_page(path, *found, version) for path, found in commands.items()}


def _man_page(path: str, command: click.Command, context: click.Context, version: str) -> str:
    name = path.replace(" ", "-")
    usage = " ".join(command.collect_usage_pieces(context))
    lines = [f'.TH "{_roff(name.upper())}" 1 "" "clusterctl {version}" "clusterctl"', ".SH NAME"]
    lines += [rf"{_roff(name)} \- {_roff(command.get_short_help_str(200))}", ".SH SYNOPSIS", f".B {_roff(path)}"]
    lines += [_roff(usage), ".SH DESCRIPTION"]
    for paragraph in _description(command.help or ""):
        if paragraph.startswith("```"):
            lines += [".nf", *map(_roff, paragraph.splitlines()[1:-1]), ".fi"]
        elif paragraph.startswith("## "):
            lines.append(f".SH {paragraph[3:].upper()}")
        else:
            lines += [".PP", _roff(re.sub(r"\\([*<\\\[_])", r"\1", paragraph))]
    options = [(names, text) for names, text in option_texts(command, context)]
    for title, items in (("OPTIONS", options), ("COMMANDS", _commands_of(command, context))):
        lines += [f".SH {title}"] if items else []
        for names, text in items:
            lines += [".TP", f".B {_roff(names)}", _roff(" ".join(text.split()))]
    above = path.rpartition(" ")[0].replace(" ", "-")
    lines += [".SH SEE ALSO", f".BR {_roff(above)} (1)"] if above else []
    return "\n".join(lines) + "\n"


def _commands_of(command: click.Command, context: click.Context) -> list[tuple[str, str]]:
    names = command.list_commands(context) if isinstance(command, click.Group) else []
    found = {name: command.get_command(context, name) for name in names} if isinstance(command, click.Group) else {}
    return [(name, one.get_short_help_str(200)) for name, one in found.items() if one]


def _roff(text: str) -> str:
    """`text` for roff: no escapes, hyphens that can be copied, and no line that looks like a request."""
    text = text.replace("\\", r"\e").replace("-", r"\-").replace("`", r"\(ga").replace("'", r"\(aq")
    return rf"\&{text}" if text.startswith(".") else text


def root() -> tuple[click.Command, click.Context]:
    from clusterctl.launcher.cli import clusterctl

    return clusterctl, click.Context(clusterctl, info_name="clusterctl", **clusterctl.context_settings)


def commands_below(
    above: tuple[click.Command, click.Context],
) -> Iterator[tuple[str, tuple[click.Command, click.Context]]]:
    """Every command with its full name, such as "clusterctl image build"; groups precede their commands."""
    group, context = above
    for name in group.list_commands(context) if isinstance(group, click.Group) else ():
        command = group.get_command(context, name)
        assert command
        inner = click.Context(command, context, info_name=name, **command.context_settings)
        yield inner.command_path, (command, inner)
        yield from commands_below((command, inner))


def file_name(path: str) -> str:
    return "-".join(path.split()[1:]) + ".md"


def _page(path: str, command: click.Command, context: click.Context, guides: GuideIndex) -> str:
    usage = " ".join([path, *command.collect_usage_pieces(context)])
    parts = [f"# {path}", f"```text\n{usage}\n```", *_description(command.help or "")]
    below = [f"- [`{name}`]({file_name(name)}): {escaped(found.get_short_help_str(200))}" for name, (found, _) in
             commands_below((command, context))]  # fmt: skip
    parts += ["## Commands", "\n".join(below)] if below else []
    options = [
        f"| <code>{_cell(names)}</code> | {_cell(escaped(text))} |" for names, text in option_texts(command, context)
    ]
    parts += ["## Options", "\n".join(["| option | |", "| --- | --- |", *options])] if options else []
    mentions = guides.naming(path) or guides.naming(path.rpartition(" ")[0])
    parts += ["## Guides", "\n".join(f"- {link}" for link in mentions)]
    return "\n\n".join(parts) + "\n"


def option_texts(command: click.Command, context: click.Context) -> Iterator[tuple[str, str]]:
    """Each option as --help prints it, and its description."""
    options = [one for one in command.get_params(context) if isinstance(one, click.Option) and one.name != "help"]
    yield from (record for option in options if (record := option.get_help_record(context)))


def _description(text: str) -> Iterator[str]:
    """The paragraphs of a command's help. Those after click's `\\b` keep their line breaks; examples become code."""
    for paragraph in re.split(
        r"\n\s*\n", "\n".join(line[4:] if line.startswith("    ") else line for line in text.splitlines())
    ):
        if not paragraph.startswith("\b"):
            yield escaped(" ".join(paragraph.split()))
            continue
        title, *lines = paragraph.removeprefix("\b\n").rstrip().split("\n")
        if title in ("Example:", "Examples:"):
            yield f"## {title.removesuffix(':')}"
            yield "\n".join(["```sh", *(line.removeprefix("  ") for line in lines), "```"])
        else:
            yield "\n".join(["```text", title, *lines, "```"])


def escaped(text: str) -> str:
    """Plain text escaped for markdown, except for code in backticks."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(
        part if part.startswith("`") else re.sub(r"[*<\\\[]|(?<!\w)_|_(?!\w)", r"\\\g<0>", part) for part in parts
    )


def _cell(text: str) -> str:
    """`text` in a table. Python-Markdown would show the backslash of `\\|` in backticks."""
    return text.replace("|", "&#124;")

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

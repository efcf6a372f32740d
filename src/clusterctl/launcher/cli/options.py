"""Options and arguments that several commands share, and the flags for what messages name.

Messages serve Python programs, too. They name an argument as "`large_code=True`" and a key of the job as
"`resources.nodes = 2`"; the command line shows the flags that do the same: --large-code, --set resources.nodes=2.
"""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import shutil
import sys
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Self, TypeVar

import click

from clusterctl.shared.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from clusterctl.launcher.api.run import Run
    from clusterctl.launcher.api.sweeps import Sweep
    from clusterctl.shared.spec import Batches


AWAIT = "await"  # the command that follows or waits for runs; only `forward` types it
_STARTERS = ("python", "python3", "torchrun", "accelerate", "deepspeed", "mpirun", "uv", "poetry", "conda")
_AS_JSON = ("note", "tags")  # quoted, so that TOML reads any text as it was typed
CTRL_C = "press Ctrl-C to stop"
Command = TypeVar("Command", bound=Callable[..., Any])
Found = TypeVar("Found")


def together(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """A decorator that adds several options in this order."""

    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


class InGroups(click.Command):
    """A command whose help lists its options in groups: title -> parameters. Those in no group come last."""

    def __init__(self, *arguments: Any, groups: Mapping[str, Sequence[str]], **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.groups = groups

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        options = [one for one in self.get_params(ctx) if isinstance(one, click.Option)]
        records = {one.name: record for one in options if (record := one.get_help_record(ctx))}
        width = min(max(len(names) for names, _ in records.values()), 26)
        for title, names in self.groups.items():
            with formatter.section(title):
                formatter.write_dl([_padded(records.pop(name), width) for name in names])
        with formatter.section("Other options"):
            formatter.write_dl([_padded(record, width) for record in records.values()])


def _padded(record: tuple[str, str], width: int) -> tuple[str, str]:
    """`record` of a list of definitions with a first column as wide as that of the other lists."""
    names, text = record
    return f"{names:{width}}", text


class WithProgram(click.Command):
    """A command that takes a program after `--`; click would parse its first word as an argument."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        end = args.index("--") if "--" in args else len(args)
        ctx.params["program"] = tuple(args[end + 1 :])
        try:
            return super().parse_args(ctx, args[:end])
        except click.UsageError:
            if end == len(args) and (begin := self._program_at(args)) is not None:
                message = f"the program and its arguments go after --: {args[begin]}"
                from clusterctl.launcher.api.settings import typed_with_program

                raise UsageError(
                    message, typed_with_program([str(ctx.info_name), *args[:begin]], args[begin:])
                ) from None
            raise

    def _program_at(self, args: Sequence[str]) -> int | None:
        """The position of the first argument that names a program, without the options before it and their values."""
        options = [one for one in self.params if isinstance(one, click.Option) and not one.is_flag]
        valued = {name for one in options if not isinstance(one.type, click.Choice) for name in one.opts}
        at = 0
        while at < len(args) and args[at].startswith("-"):
            at += 2 if args[at] in valued else 1
        word = args[at] if at < len(args) else ""
        is_program = word in _STARTERS or shutil.which(word) or os.path.isfile(word)  # noqa: PTH113
        return at if is_program and not word.endswith(".toml") else None

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "[-- PROGRAM...]"]


class _Shorthand(click.Option):
    """An option that is short for --set KEY=VALUE."""

    def __init__(self, *arguments: Any, key: str, **details: Any) -> None:
        super().__init__(*arguments, **details)
        self.key = key


def shorthand(*names: str, key: str, **details: Any) -> Callable[[Command], Command]:
    """Like `click.option`, for an option that is short for --set `key`=VALUE; `typed_settings` collects them."""
    return click.option(*names, cls=_Shorthand, key=key, **details)


cluster_option = click.option("--cluster", metavar="NAME", help="Cluster whose runs to use.")
output_option = click.option(
    "-o", "output", type=click.Choice(["table", "json"]), default="table", help="Output format."
)
resource_options = together(
    click.option(
        "--set", "settings", metavar="KEY=VALUE", multiple=True, help="Override any setting, e.g. train.lr=3e-3."
    ),
    shorthand("-N", "--nodes", key="resources.nodes", metavar="N", help="Short for --set resources.nodes=N."),
    shorthand(
        "--gpus-per-node", key="resources.gpus_per_node", metavar="N", help="Short for --set resources.gpus_per_node=N."
    ),
    shorthand(
        "--tasks-per-node",
        key="resources.tasks_per_node",
        metavar="N",
        help="Short for --set resources.tasks_per_node=N.",
    ),
    shorthand(
        "-t", "--time", key="resources.time", metavar="TIME", help="Time limit: 90 (minutes), 4h, 1-00:00:00, auto."
    ),
    shorthand("-p", "--partition", key="resources.partition", metavar="NAME", help="Slurm partition."),
    shorthand("-A", "--account", key="resources.account", metavar="NAME", help="Slurm account."),
    shorthand("--qos", key="resources.qos", metavar="NAME", help="Slurm quality of service."),
)
sweep_options = click.option(
    "--sweep",
    "axes",
    metavar="KEY=VALUES",
    multiple=True,
    help="Start one run per value: 1e-3,1e-2 or 0..4; or a range: log:1e-4..1e-1.",
)
waiting_options = together(
    click.option("--hold", is_flag=True, help="Queue it, but hold it until `clusterctl release`."),
    click.option("--follow", is_flag=True, help="Show the training until it ends; Ctrl-C does not affect the run."),
    click.option("--wait", is_flag=True, help="Wait for the run to end; exit 0 if it finished, else 1."),
    click.option(
        "--timeout",
        metavar="SECONDS",
        type=click.FloatRange(min=0),
        help="With --wait: give up and exit 124 after this long.",
    ),
)


label_options = together(
    shorthand(
        "--note", key="note", metavar="TEXT", help="What the run is about; shown with it. Short for --set note=TEXT."
    ),
    shorthand(
        "--tag",
        "tags",
        key="tags",
        metavar="WORD",
        multiple=True,
        help="Mark the run for `status --tag WORD`; repeatable.",
    ),
)


def typed_settings(values: Mapping[str, Any]) -> list[str]:
    """All settings of the command line as KEY=VALUE; `values` as parsed by click. The short options win."""
    options = [one for one in click.get_current_context().command.params if isinstance(one, _Shorthand)]
    short = {one.key: value for one in options if (value := values[str(one.name)]) not in (None, ())}
    return [
        *values["settings"],
        *(
            f"{key}={json.dumps(value, ensure_ascii=False) if key in _AS_JSON else value}"
            for key, value in short.items()
        ),
    ]


@dataclass(frozen=True, kw_only=True)
class Starting:
    """The command line of a command that starts runs. `settings` includes those of short flags, such as --nodes."""

    cluster: str | None
    settings: tuple[str, ...]
    hold: bool
    follow: bool
    wait: bool
    timeout: float | None

    @classmethod
    def of(cls, typed: Mapping[str, Any]) -> Self:
        """The request from click's parameters."""
        own = {one.name: typed[one.name] for one in fields(cls)}
        return cls(**{**own, "settings": tuple(typed_settings(typed))})

    def check_waiting(self, *, dry_run: bool = False) -> None:
        """Raise UsageError if flags of `waiting_options` contradict each other."""
        if dry_run and (self.hold or self.follow or self.wait):
            raise UsageError("--dry-run cannot be combined with --hold, --follow or --wait", "leave one of them out")
        if self.hold and (self.follow or self.wait):
            raise UsageError("--hold with --follow or --wait would wait forever", "leave one of them out")
        if self.follow and self.wait:
            raise UsageError("--follow and --wait cannot be combined", "leave one of them out")
        if self.timeout is not None and (not self.wait or math.isnan(self.timeout)):
            raise UsageError("--timeout needs --wait and a number of seconds", "for example --wait --timeout 600")

    def await_end(self, runs: Iterable[Run | Sweep]) -> None:
        """Follow `runs` or wait for them, if asked to; raises RunFailed or SweepFailed if one did not finish."""
        if not (self.follow or self.wait):
            return
        from clusterctl.launcher.api.remote.operations import client_data

        if client := client_data():  # the machine where it was typed asks for that, also if the connection breaks
            asked = {"ids": [run.id for run in runs], "follow": self.follow, "timeout": self.timeout}
            deque(client.ask({"wait": asked}), maxlen=0)
        else:
            follow_or_wait(runs, follow=self.follow, timeout=self.timeout)

    def await_run(self, run: Run, where: str, *, also: str = "") -> None:
        """`await_end` of one run; if nobody waits, print the next command to type, at a terminal only."""
        if sys.stderr.isatty() and not (self.follow or self.wait):
            first = f"clusterctl release {run.id}" if self.hold else f"clusterctl logs -f {run.id}"
            click.echo(f"{where} on {run.cluster.name}\n{with_flags(f'next: {first}{also}')}", err=True)
        self.await_end([run])


def follow_or_wait(runs: Iterable[Run | Sweep], *, follow: bool, timeout: float | None) -> None:
    """Wait until the end of each of `runs`; `follow` shows it, for runs."""
    from clusterctl.launcher.api.run import Run

    for run in runs:
        if follow and isinstance(run, Run):
            from clusterctl.launcher.display.live_run import show

            show(run.directory)
        run.wait(timeout)


def echo_json(record: Mapping[str, Any]) -> None:
    click.echo(json.dumps(record, indent=1))


def echo_csv(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    import csv

    writer = csv.DictWriter(sys.stdout, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)


def warn(message: str, hint: str = "") -> None:
    """Print a warning to stderr."""
    from clusterctl.launcher.display.plain import plain
    from clusterctl.launcher.display.terminal import fitted

    click.echo("\n".join(fitted([f"warning: {plain(with_flags(message))}"], sys.stderr)), err=True)
    if hint:
        click.echo(f"hint: {plain(with_flags(hint))}", err=True)


def show_batches(batches: Batches | None) -> None:
    """Print how the training splits its examples over ranks."""
    if batches:
        click.echo(str(batches), err=True)


def show_advice(advice: str) -> None:
    """Print how a request compares with what earlier runs needed."""
    if advice:
        from clusterctl.launcher.display.plain import plain

        click.echo(plain(with_flags(advice)), err=True)


def warn_of(problems: Iterable[Any]) -> None:
    """Print a warning for each problem, and a plain line for a check that found none but has something to say."""
    from clusterctl.launcher.display.plain import plain

    for problem in problems:
        if getattr(problem, "verdict", None) == "OK":
            click.echo(plain(with_flags(problem.message)), err=True)
        else:
            warn(problem.message, problem.hint)


def asked_if_large(call: Callable[..., Found], *, large: bool) -> Found:
    """`call(large_code=, progress=)`; at a terminal, the user may confirm copying a large project."""
    from clusterctl.launcher.api.submitting.submit import LargeCode
    from clusterctl.launcher.display.terminal import shown

    while True:
        try:
            with shown() as progress:
                return call(large_code=large, progress=progress)
        except LargeCode as found:
            if large or sys.stdin is None or not sys.stdin.isatty():
                raise
            warn(found.message)
            if not click.confirm("Copy all of it?", err=True):
                raise
            large = True


def confirmed(question: str, *, yes: bool) -> bool:
    """Ask for confirmation on stdin. Raises UsageError without an answer."""
    if yes:
        return True
    try:
        if sys.stdin is not None:
            return click.confirm(question, err=True)
    except click.Abort:
        if sys.stdin.isatty():
            raise
        click.echo(err=True)  # the prompt has no newline
    raise UsageError("no answer on stdin", "add --yes, or pipe the answer: echo y | clusterctl ...")


def browser() -> Callable[[Path], None]:
    """What opens a page in a browser of this machine. Raises UsageError if there is none, as on a login node."""
    import webbrowser

    try:
        found = webbrowser.get()
    except webbrowser.Error:
        hint = "copy the file to your machine, or set BROWSER to a command that opens a page"
        raise UsageError("--open: no browser on this machine", hint) from None

    def start(page: Path) -> None:
        if not found.open(page.resolve().as_uri()):
            warn(f"the browser did not start: {found.name}", f"open it yourself: {page}")

    return start


# Arguments whose flag has another name.
_OTHER = {"overrides": "--set", "axes": "--sweep", "file": "--sweep-file", "replacing": "--with", "script": "--from"}
_ARRAY = "resources.sbatch.array"  # other keys get --set, which every command has that may show such a message
_STRING = r'"(?:[^"\\\n]|\\.)*"'  # of JSON: a value that may contain anything
_MARKED = re.compile(rf"`(?P<name>[a-z]\w*(?:\.[\w-]+)*)(?P<equals> ?= ?)(?P<value>(?:{_STRING}|[^`\"\n])*)`")


def flag_of(argument: str) -> str:
    """The flag that corresponds to an argument of the Python API."""
    return _OTHER.get(argument) or f"--{argument.replace('_', '-')}"


def with_flags(text: str) -> str:
    """`text` with flags in place of the arguments and keys that it names; its commands name the cluster typed."""
    from clusterctl.launcher.api.remote.cluster import suggested  # most commands print no message

    return suggested(_MARKED.sub(_flag, text))


def _flag(found: re.Match[str]) -> str:
    name, equals, value = found.group("name", "equals", "value")
    if re.fullmatch(_STRING, value):
        try:
            value = json.loads(value)
        except ValueError:  # a user's own text
            return found[0]
    if equals == "=":
        words = [flag_of(name), *([] if value in ("", "True") else [value])]
    elif equals == " = ":
        words = ["--array", value] if name == _ARRAY else ["--set", f"{name}={value}"]
    else:
        return found[0]
    return shlex.join(words)

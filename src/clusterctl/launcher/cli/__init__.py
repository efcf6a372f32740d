"""The command line: one module per group of commands, imported when one is called. The only place for click."""

from __future__ import annotations

import errno
import gc
import importlib
import io
import os
import sys
from typing import TYPE_CHECKING, Any, NoReturn

import click

from clusterctl import __version__
from clusterctl.shared.errors import ClusterctlError, UsageError, reason

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_OS_HINTS = {
    errno.EACCES: "check the permissions with: ls -ld",
    errno.EPERM: "check the permissions with: ls -ld",
    errno.ENOSPC: "check for a full disk with: df -h",
    errno.EDQUOT: "check for a used-up quota with: quota -s",
    errno.EMFILE: "raise the limit with: ulimit -n 4096",
}
INTERRUPTED = 130  # 128 + SIGINT, the shell's convention

# Title -> command -> its line in `clusterctl --help`, which imports no command.
GROUPS = {
    "Start": {
        "init": "Write a first cluster file and job from Slurm's configuration",
        "doctor": "Check this machine and a cluster",
        "config": "Show jobs, clusters and where values come from",
        "completion": "Print the shell completion script",
    },
    "Submit": {
        "submit": "Submit a job to a cluster",
        "nodes": "Show free resources and where a job would fit",
        "alloc": "Reserve nodes to start runs on them in seconds",
        "release": "Release a run submitted with --hold",
    },
    "Watch": {
        "status": "Show runs: state, progress, accuracy",
        "logs": "Show the logs of a run's ranks, or of any job",
        "monitor": "Watch runs: curves, GPUs, logs, the queue",
        "dashboard": "Show runs in a browser",
        "mcp": "Let coding agents read runs, and submit if you allow it",
        "attach": "Open a shell next to a rank of a run",
        "tunnel": "Connect to a port on a rank's node",
        "notify": "Send notifications about runs",
        "track": "Copy the metrics of a run to TensorBoard, W&B or MLflow",
    },
    "Explain": {
        "why": "Explain why a run or any job is waiting or has failed",
        "report": "Write an HTML report on runs or a sweep",
        "diff": "Show what differs between two runs",
    },
    "Continue": {
        "cancel": "Cancel queued or running runs and jobs",
        "resume": "Restart an unfinished run from its last checkpoint",
        "rerun": "Submit a new run with the code and settings of an earlier one",
    },
    "Keep": {
        "fetch": "Copy a run's files to this machine",
        "export": "Pack a run into an archive",
        "usage": "Show hours used by runs, or what a run needs",
        "clean": "Show disk usage and remove old runs",
    },
    "Prepare": {
        "image": "Build, import and manage container images",
        "data": "Download or generate data sets",
        "sandbox": "Start a real Slurm on this machine",
    },
}
COMMANDS = {name: text for group in GROUPS.values() for name, text in group.items()}
# Command -> the module that has it, if that is not named after it.
_MODULES = {
    **dict.fromkeys(("alloc", "attach", "tunnel"), "nodes"),
    **dict.fromkeys(("rerun", "cancel", "release"), "resume"),
    **dict.fromkeys(("fetch", "export", "usage", "clean", "notify", "track"), "keep"),
    **dict.fromkeys(("monitor", "report", "dashboard"), "screens"),
    **dict.fromkeys(("why", "logs", "diff"), "explain"),
    **dict.fromkeys(("init", "doctor"), "config"),
}
# What other tools call a command.
_SYNONYMS = {
    **dict.fromkeys(("kill", "stop", "abort", "end", "scancel"), "cancel"),
    **dict.fromkeys(("list", "ls", "ps", "runs", "show", "squeue"), "status"),
    **dict.fromkeys(("run", "start", "launch", "sbatch", "train"), "submit"),
    **dict.fromkeys(("restart", "retry", "continue", "requeue"), "resume"),
    **dict.fromkeys(("watch", "top"), "monitor"),
    **dict.fromkeys(("browser", "web", "serve"), "dashboard"),
    **dict.fromkeys(("ssh", "shell", "exec"), "attach"),
    **dict.fromkeys(("forward", "port-forward", "port"), "tunnel"),
    **dict.fromkeys(("tail", "log", "output"), "logs"),
    **dict.fromkeys(("explain", "diagnose"), "why"),
    **dict.fromkeys(("check", "verify"), "doctor"),
    **dict.fromkeys(("gc", "prune"), "clean"),
    **dict.fromkeys(("again", "clone", "repeat", "resubmit"), "rerun"),
    **dict.fromkeys(("compare", "changes"), "diff"),
    **dict.fromkeys(("download", "pull", "get", "copy", "scp", "rsync"), "fetch"),
}
_REMOVING = ("delete", "remove", "rm", "purge")
_LEAST_LIKENESS = 0.7  # one or two wrong letters


class LazyGroup(click.Group):
    """Imports a command when it is called, and suggests the closest name for an unknown one."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        from clusterctl.launcher.cli.remote import forwarding

        command = getattr(
            importlib.import_module(f"clusterctl.launcher.cli.{_MODULES.get(cmd_name, cmd_name)}"), cmd_name
        )
        assert isinstance(command, click.Command)
        return forwarding(command)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        self.format_commands(ctx, formatter)
        click.Command.format_options(self, ctx, formatter)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        width = max(map(len, COMMANDS))  # all groups in the same two columns
        for title, group in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(f"{name:{width}}", text) for name, text in group.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in COMMANDS and not name.startswith("-"):
            if name in _REMOVING:
                hint = "a run is a folder: remove it with rm -r; old ones with: clusterctl clean --older-than 30d"
            elif name in _SYNONYMS:
                hint = f"did you mean {_SYNONYMS[name]}?"
            else:
                import difflib

                close = difflib.get_close_matches(name, COMMANDS, 1, _LEAST_LIKENESS)
                hint = f"did you mean {close[0]}?" if close else "see all commands with: clusterctl --help"
            raise UsageError(f"no such command: {name}", hint)
        return super().resolve_command(ctx, args)


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]}, no_args_is_help=False)
@click.version_option(__version__, message="clusterctl %(version)s")
def clusterctl() -> None:
    """Submit multi-node graph-network training to a Slurm cluster and follow it from the login node.

    \b
    Examples:
      clusterctl submit cora --follow
      clusterctl status
      clusterctl logs @last -f

    RUN is a run id, a prefix of one, a job's name (its newest run), @last, @failed, or the ID of its Slurm job.
    """
    try:
        os.getcwd()  # noqa: PTH109 - pathlib need not be imported for it
    except FileNotFoundError as error:
        raise UsageError("the current folder no longer exists", "change to another one, such as: cd ~") from error


def main() -> NoReturn:
    """Run the command line and exit with its exit code."""
    gc.set_threshold(20_000)  # at the default, the collector takes a quarter of `status -a` on 10,000 runs
    prepare_streams()
    sys.exit(run(sys.argv[1:]))


def prepare_streams() -> None:
    """Make stdout and stderr accept any text, even where the locale cannot encode it or a stream is closed."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: PTH123, SIM115 - None after `>&-`


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code."""
    words = tuple(arguments)
    return rendered(clusterctl.main, [*words], prog_name="clusterctl", standalone_mode=False, obj=words)


def rendered(call: Callable[..., object], /, *arguments: Any, **named: Any) -> int:
    """The exit code of a call: what it returns, or that of its error. The one place where errors are rendered."""
    try:
        code = call(*arguments, **named)
        sys.stdout.flush()  # here, where a closed pipe can still be handled
    except ClusterctlError as error:
        return _render(error.message, error.hint, error.exit_code)
    except click.ClickException as error:
        # Without a command, a group's message is its whole help.
        missing = isinstance(error, click.exceptions.NoArgsIsHelpError)
        message = "missing command" if missing else error.format_message().rstrip(".")
        context = error.ctx if isinstance(error, click.UsageError) else None
        hint = f"{context.command_path if context else 'clusterctl'} --help"
        return _render(message[:1].lower() + message[1:], hint, UsageError.exit_code)
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except OSError as error:
        try:
            sys.stdout.flush()
        except OSError:  # the interpreter flushes again on exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            return 1
        message, hint = reason(error), _OS_HINTS.get(error.errno or 0, "")
        if error.errno == errno.ENOSPC:  # a failed write names no file: name the full folder among those we write to
            import shlex

            from clusterctl.launcher.cli.config import full_folder

            if found := error.filename or full_folder():
                message = message if error.filename else f"{message}: {found}"
                hint = f"{hint} {shlex.quote(str(found))}"
        return _render(message, hint, 1)
    return code if isinstance(code, int) else 0


def _render(message: str, hint: str, exit_code: int) -> int:
    from clusterctl.launcher.cli.options import with_flags
    from clusterctl.launcher.display.plain import plain_lines
    from clusterctl.launcher.display.terminal import fitted

    for label, text in (("error", message), ("hint", hint)):
        if text:
            lines = f"{label}: {plain_lines(with_flags(text))}".replace("\n", "\n  ").split("\n")
            click.echo("\n".join(fitted(lines, sys.stderr)), err=True)
    return exit_code

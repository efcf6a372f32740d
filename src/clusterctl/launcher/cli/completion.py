"""`clusterctl completion`: the shell completion script; the candidates are found by `launcher/api/completions.py`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from clusterctl.launcher.cli.options import WithProgram
from clusterctl.shared.errors import UsageError

_SHELLS = ("bash", "zsh", "fish")
# What an argument or an option's value is, by its metavar.
_KINDS: dict[str, str] = {"JOB": "job", "KEY=VALUE": "setting", "KEY=VALUES": "setting"}
_KINDS |= dict.fromkeys(("RUN", "RUN|SWEEP", "RUN1", "RUN2"), "run")
_KINDS |= dict.fromkeys(("RUN|JOBID", "RUN|SWEEP|JOBID", "RUN|JOBID|FILE"), "run")
_KINDS |= dict.fromkeys(("FILE", "FOLDER", "DIR", "PATH"), "file")
_ONLY_LIVING = ("cancel", "release", "attach", "tunnel")


@click.command(short_help="Print the shell completion script")
@click.argument("shell", type=click.Choice(_SHELLS), required=False, metavar="[bash|zsh|fish]")
def completion(shell: str | None) -> None:
    """Print the shell script that completes commands, options, jobs, clusters, runs and settings.

    \b
    Examples:
      eval "$(clusterctl completion bash)"     in ~/.bashrc
      eval "$(clusterctl completion zsh)"      in ~/.zshrc
      clusterctl completion fish | source      in ~/.config/fish/config.fish
    """
    shell = shell or Path(os.environ.get("SHELL", "")).name
    if shell not in _SHELLS:
        raise UsageError("unknown shell: $SHELL is not bash, zsh or fish", "clusterctl completion bash")
    click.echo(Path(__file__).with_suffix(f".{shell}").read_text(), nl=False)


def described(command: click.Command, text: str = "", above: click.Context | None = None) -> dict[str, Any]:
    """What `api.completions` needs to know about `command` and its subcommands."""
    context = click.Context(command, above, **command.context_settings)  # `-h` comes from the top-level settings
    arguments: list[Any] = []
    options: dict[str, Any] = {}
    found: dict[str, Any] = {"help": text, "options": options}
    for parameter in command.get_params(context):
        if isinstance(parameter, click.Option):
            names = sorted([*parameter.opts, *parameter.secondary_opts])  # click does not order those of --help
            option: dict[str, Any] = {"help": parameter.help or ""}
            if not parameter.is_flag and not parameter.count:
                option |= {"value": _kind(parameter, command.name)}
                option |= {"optional": True} if isinstance(parameter.flag_value, str) else {}
            options |= dict.fromkeys(names, option)
        else:
            arguments.append(_kind(parameter, command.name))
            found |= {"repeats": True} if parameter.nargs == -1 else {}
    if isinstance(command, click.Group):
        below = {name: command.get_command(context, name) for name in command.list_commands(context)}
        found["commands"] = {
            name: described(one, one.get_short_help_str(200), context) for name, one in below.items() if one
        }
    found |= {"arguments": arguments} if arguments else {}
    return found | ({"program": True} if isinstance(command, WithProgram) else {})


def _kind(parameter: click.Parameter, command: str | None) -> str | list[str]:
    if isinstance(parameter.type, click.Choice):
        return list(parameter.type.choices)
    if parameter.name in ("cluster", "rank", "metric"):
        return parameter.name
    if parameter.name == "state":
        from clusterctl.launcher.api.find import STATE_GROUPS, State  # late: only `make docs` gets here

        return [*STATE_GROUPS, *map(str, State)]
    word = (parameter.metavar or str(parameter.name)).upper().strip("[].")
    kind = _KINDS.get(word, "file" if isinstance(parameter.type, click.Path) else "")
    return "living" if kind == "run" and command in _ONLY_LIVING and isinstance(parameter, click.Argument) else kind

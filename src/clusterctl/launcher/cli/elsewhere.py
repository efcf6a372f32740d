"""Forward a command to another machine if its cluster file names a host."""

from __future__ import annotations

from typing import Any

import click

# Commands that always run on this machine.
_HERE = {"config", "completion", "sandbox", "init", "image build", "image run", "fetch"}


def forwarding(command: click.Command) -> click.Command:
    """`command`, forwarded to its cluster's host if there is one."""
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            command.commands[name] = forwarding(inner)
        return command
    callback = command.callback
    is_wrapped = hasattr(callback, "here")  # a process may look up the same command many times
    if callback is None or is_wrapped or not any(parameter.name == "cluster" for parameter in command.params):
        return command

    def called(**values: Any) -> Any:
        from clusterctl.launcher.api.elsewhere import elsewhere

        context = click.get_current_context()
        name = " ".join(context.command_path.split()[1:])
        cluster = values.get("cluster")
        several = name == "status" and "," in (cluster or "")
        place = None if name in _HERE or several else elsewhere(cluster)
        if place is None:
            return callback(**values)
        from clusterctl.launcher.cli.forward import send

        return send(name, values, place, context.find_root().obj)

    called.here = callback  # type: ignore[attr-defined]
    command.callback = called
    return command

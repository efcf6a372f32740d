"""Commands run on another machine if their cluster file names a host (`forward`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from collections.abc import Callable

Function = TypeVar("Function", bound="Callable[..., Any]")


def remotely(**manner: Any) -> Callable[[Function], Function]:
    """Decorates the function of a command: how it is sent there (the fields of `forward.Manner`).

    With `here`, it always runs on this machine. A command without this decorator only shows something.
    """

    def decorate(function: Function) -> Function:
        function.remotely = manner  # type: ignore[attr-defined]
        return function

    return decorate


def forwarding(command: click.Command) -> click.Command:
    """`command`, run on its cluster's host if there is one; what it suggests is for the cluster that was typed."""
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            command.commands[name] = forwarding(inner)
        return command
    callback = command.callback
    manner = getattr(callback, "remotely", {})
    is_wrapped = hasattr(callback, "wrapped")  # a process may look up the same command many times
    if callback is None or is_wrapped or not any(one.name == "cluster" for one in command.params):
        return command

    def called(**values: Any) -> Any:
        from clusterctl.launcher.api.remote.cluster import names_files, remote_cluster, typed_cluster

        words = click.get_current_context().find_root().obj
        if "chooses" in manner and "," in (values["cluster"] or ""):
            typed, values["cluster"] = values["cluster"], manner["chooses"](values)
            words = [
                values["cluster"]
                if word == typed
                else f"--cluster={values['cluster']}"
                if word == f"--cluster={typed}"
                else word
                for word in words
            ]
        several = "several" in manner and "," in (values["cluster"] or "")
        stays = several or "here" in manner or ("files" in manner and names_files(values[manner["files"]]))
        with typed_cluster(None if several else values["cluster"]):
            place = None if stays else remote_cluster(values["cluster"])
            if place is None:
                return callback(**values)
            from clusterctl.launcher.cli.forward import Forwarded, Manner

            return Forwarded(Manner(**manner), values, place, words).run()

    called.wrapped = callback  # type: ignore[attr-defined]
    command.callback = called
    return command

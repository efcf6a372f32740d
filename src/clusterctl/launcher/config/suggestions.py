"""Commands suggested to a person: they name the cluster that was typed, or they would use another one.

Messages are made far from the command line, and many on another machine, so they leave the cluster out; what shows them
calls `suggested`. In Python, the cluster is the argument of the call, and later that of the run it returned.
"""

from __future__ import annotations

import re
import shlex
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import lru_cache
from typing import TYPE_CHECKING

from clusterctl.launcher.config.client_data import client_data
from clusterctl.launcher.config.clusters import chosen_runs_folder, load_cluster
from clusterctl.shared.errors import ClusterctlError

if TYPE_CHECKING:
    from collections.abc import Iterator

# The commands with --cluster (a test compares them): those that need only the cluster's runs, and the others.
OF_RUNS = frozenset(
    {
        *("release", "status", "logs", "monitor", "dashboard", "mcp", "attach", "tunnel", "notify", "track", "why"),
        *("report", "diff", "cancel", "resume", "rerun", "fetch", "export", "usage", "clean"),
    }
)
OF_CLUSTERS = frozenset(
    {
        *("doctor", "submit", "nodes", "alloc", "config show", "data generate", "data prepare"),
        *(f"image {action}" for action in ("build", "import", "inspect", "list", "prune", "run", "verify")),
    }
)
_COMMAND = re.compile(
    r"(?<![\w./-])clusterctl (?P<command>(?:config |data |image )?[a-z]+)(?![\w-])"
    r"(?P<rest>(?:(?!clusterctl | && )[^\n`;])*)"
)
# Other programs look at the machine of the cluster: here they would find nothing, or something else.
_OF_HOSTS = re.compile(
    r"(?:^|(?<=: ))(?:squeue --|scontrol (?:ping|show|release)|sacctmgr show|ls -l |df -h |quota -s|chmod \w"
    r"|mkdir -p (?![^\n;]*&&))[^\n;]*",
    re.MULTILINE,
)
_typed: str | None = None  # on the command line; not a context variable, since screens draw in threads
_called: ContextVar[str | None] = ContextVar("called", default=None)  # in Python, where threads may use two clusters


@contextmanager
def typed_cluster(name: str | None) -> Iterator[None]:
    """Suggestions made within the block, and in errors that leave it, are for the cluster `name` if one was typed."""
    global _typed
    before, _typed = _typed, name
    _here.cache_clear()
    try:
        yield
    except ClusterctlError as error:
        name_cluster(error)
        raise
    finally:
        _typed = before


@contextmanager
def called_cluster(name: str | None) -> Iterator[None]:
    """The same for a call with `cluster=name` in this thread; with None, it uses the cluster of the call around it."""
    before = _called.set(name or _called.get())
    _here.cache_clear()
    try:
        yield
    except ClusterctlError as error:
        name_cluster(error)
        raise
    finally:
        _called.reset(before)


def of_call() -> str | None:
    """The cluster of the call that this is part of; None if it was not given."""
    return _called.get()


def name_cluster(error: ClusterctlError) -> None:
    """Put the cluster into what `error` suggests."""
    hint = suggested(error.hint)
    if notes := getattr(error, "__notes__", None):
        error.__notes__ = [f"hint: {hint}" if note == f"hint: {error.hint}" else note for note in notes]
    message = suggested(error.message)
    error.args = tuple(message if one == error.message else one for one in error.args)
    error.message, error.hint = message, hint


def suggested(text: str) -> str:
    """`text` with --cluster in its commands of clusterctl, where they would use another cluster without it.

    If this process runs a command of another machine, other programs get that machine's `ssh`.
    """
    client = client_data()
    if client and (host := client.sent.host):
        text = _OF_HOSTS.sub(lambda found: shlex.join(["ssh", host, found[0]]), text)
    if "clusterctl " not in text:
        return text
    name, commands = (client.sent.typed, OF_RUNS | OF_CLUSTERS) if client else _here(_called.get() or _typed)
    flag = f" --cluster {shlex.quote(name)}" if name else ""

    def named(found: re.Match[str]) -> str:
        is_named = re.search(r" --cluster[ =]", found["rest"].partition(" -- ")[0])
        if not flag or is_named or found["command"] not in commands:
            return found[0]
        # Directly after the command, where it needs no knowledge of where the command ends.
        return f"clusterctl {found['command']}{flag}{found['rest']}"

    return _COMMAND.sub(named, text)


@lru_cache(maxsize=4)  # screens draw often
def _here(name: str | None) -> tuple[str, frozenset[str]]:
    """What to type of the cluster `name`, and the commands that need it: several clusters may share their runs."""
    if not name:
        return "", frozenset()
    with suppress(ClusterctlError):
        if load_cluster(None) == load_cluster(name):
            return "", frozenset()
    with suppress(ClusterctlError):
        if chosen_runs_folder(None) == chosen_runs_folder(name) and load_cluster(name).host is None:
            return name, OF_CLUSTERS
    return name, OF_RUNS | OF_CLUSTERS

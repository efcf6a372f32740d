"""What an engine's last words mean: a message and what to type. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_BOOTSTRAP = "BASE=bootstrap makes a base image from Debian packages, without a registry"
# What it says -> what is wrong, what to type; the first that matches. Docker 20 to 28, podman 4, buildah 1.28.
_KNOWN = (
    (r"no space left on device", "no space left", "make room{room}; see: df -h"),
    (r"disk quota exceeded", "the quota is used up", "make room{room}; see: quota -s"),
    (
        (
            r"no such host|dial tcp|connection refused|i/o timeout|TLS handshake|network is unreachable|"
            r"server misbehaving|certificate signed by unknown|proxyconnect"
        ),
        "the registry cannot be reached",
        f"is there a network here? {_BOOTSTRAP}",
    ),
    (
        r"unauthorized|authentication required|denied: requested access|forbidden|no basic auth",
        "the registry refuses",
        "is the name right? if so: {login}",
    ),
    (
        (
            r"manifest unknown|not found: manifest|name unknown|repository does not exist|"
            r"no such image|image not known|short-name .* did not resolve|pull access denied"
        ),
        "no such image",
        f"check name and tag; {_BOOTSTRAP}",
    ),
    (
        r"permission denied.*docker\.sock|newuidmap|cannot (?:setup|clone).*user ?namespace|/etc/subuid",
        "you may not build images here",
        "join the group docker, get lines in /etc/subuid and /etc/subgid, or ask for a machine where you may",
    ),
    (
        r"No matching distribution found|Could not find a version",
        "a wheel is missing",
        "get the wheels again: clusterctl image build --fresh",
    ),
)


def explain(said: Sequence[str], engine: str) -> tuple[str, str]:
    """The message and the hint for the last lines that `engine` said."""
    text = "\n".join(said)
    line = _telling(said)
    for pattern, message, hint in _KNOWN:
        if match := re.search(pattern, text, re.IGNORECASE):
            whole = next((one for one in said if match[0].splitlines()[0] in one), line)
            return f"{message}: {whole.strip()}", hint.format(login=_login(engine), room=_room(engine))
    return line, "the lines above say more; build with -v to see all of them"


def _login(engine: str) -> str:
    return "a line for it in ~/.config/enroot/.credentials" if engine == "enroot" else f"{engine} login REGISTRY"


def _room(engine: str) -> str:
    return "" if engine == "enroot" else f": {engine} {'rmi --prune' if engine == 'buildah' else 'image prune'}"


def _telling(said: Sequence[str]) -> str:
    """The line that most likely says what went wrong."""
    lines = [line.strip() for line in said if line.strip()]
    errors = [line for line in lines if re.match(r"(?i)(error|fatal|failed)\b", line)]
    return (errors or lines or ["it said nothing"])[-1]

"""Which variables a task inside an image has: enroot's rules, so that an image behaves here as it does under pyxis.

The host's variables come in, but for its locale; what the image defines beats them, unless the variable was named; PATH
is the image's alone. A login shell then reads the image's /etc/profile.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# Never the image's to say, or of no consequence to a run.
_OWN = frozenset({"HOME", "HOSTNAME", "LOGNAME", "OLDPWD", "PATH", "PWD", "SHELL", "SHLVL", "TERM", "USER", "_"})


def parse_environment(lines: Iterable[str]) -> dict[str, str]:
    """What /etc/environment or an image's configuration sets: one NAME=VALUE a line, values as they are."""
    pairs = (line.partition("=") for line in lines if not line.lstrip().startswith("#"))
    return {name.strip(): value for name, equals, value in pairs if equals and name.strip()}


def inside(host: Mapping[str, str], image: Mapping[str, str], kept: Collection[str]) -> dict[str, str]:
    """The environment of a task: `host` is what srun gave it, `kept` names what the image must not change."""
    entering = {name: value for name, value in host.items() if name in kept or not _is_locale(name)}
    imposed = {name: value for name, value in image.items() if name not in kept or name not in host}
    path = {} if "PATH" in kept and "PATH" in host else {"PATH": image.get("PATH", _PATH)}
    return entering | imposed | path


def overridden(host: Mapping[str, str], image: Mapping[str, str], kept: Collection[str]) -> list[str]:
    """The variables that the host sets and the image changes, where a run may care."""
    return sorted(
        name
        for name, value in image.items()
        if name in host and name not in kept and name not in _OWN and not _is_locale(name) and host[name] != value
    )


def _is_locale(name: str) -> bool:
    return name in ("LANG", "LANGUAGE") or name.startswith("LC_")

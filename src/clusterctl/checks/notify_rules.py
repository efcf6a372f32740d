"""Whether others can be told what happens to the run."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from clusterctl.checks.check import Check, fail

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clusterctl.checks.surroundings import Surroundings


def notify_rules(found: Surroundings) -> Iterator[Check]:
    """The webhook of a run that is asked for. What its URL is, is not shown."""
    wanted = found.wanted
    if wanted is None or (name := wanted.resolved.job.notify.url_variable) is None:
        return
    if not wanted.webhook:
        hint = f"export {name}=https://..., or leave notify.url_variable out"
        yield fail("notify", f"notify.url_variable: {name} is not set in the environment", hint)
    elif not _is_url(wanted.webhook):
        yield fail("notify", f"notify.url_variable: {name} holds no URL", "it begins with https:// or http://")


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname) and text.isprintable() and " " not in text

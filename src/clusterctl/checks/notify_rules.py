"""Checks whether notifications about the run can be sent."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from clusterctl.checks.check import Check, fail

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clusterctl.checks.surroundings import Surroundings


def notify_rules(found: Surroundings) -> Iterator[Check]:
    """The webhook of the requested run. Its URL is not shown."""
    wanted = found.wanted
    if wanted is None or (name := wanted.resolved.job.notify.url_variable) is None:
        return
    if not wanted.webhook:
        hint = f"export {name}=https://..., or remove notify.url_variable"
        yield fail("notify", f"notify.url_variable: {name} is not set in the environment", hint)
    elif not _is_url(wanted.webhook):
        yield fail("notify", f"notify.url_variable: {name} is not a URL", "it must start with https:// or http://")


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname) and text.isprintable() and " " not in text

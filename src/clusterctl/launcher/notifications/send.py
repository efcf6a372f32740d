"""Sends one message to a webhook or a command. Errors are returned, without the URL."""

from __future__ import annotations

import os
import signal
import ssl
import subprocess
import threading
from contextlib import suppress
from enum import StrEnum
from http.client import HTTPException, InvalidURL
from typing import TYPE_CHECKING, NamedTuple
from urllib.error import HTTPError, URLError
from urllib.request import (
    HTTPDefaultErrorHandler,
    HTTPErrorProcessor,
    HTTPHandler,
    HTTPSHandler,
    OpenerDirector,
    ProxyHandler,
    Request,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_SCHEMES = ("https://", "http://")


class Outcome(StrEnum):
    SENT = "sent"
    REFUSED = "refused"  # certainly not delivered
    UNKNOWN = "unknown"  # may have been delivered


class Delivery(NamedTuple):
    """The outcome of sending a message, and the reason."""

    outcome: Outcome
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.outcome}: {self.reason}" if self.reason else self.outcome


def to_webhook(url: str, content: bytes, seconds: float) -> Delivery:
    """POST JSON to `url`. Only the status of the response is read; `seconds` limits each network operation."""
    if not url.startswith(_SCHEMES):
        return Delivery(Outcome.REFUSED, "the URL does not start with https:// or http://")
    headers = {"Content-Type": "application/json", "User-Agent": "clusterctl"}
    opener = OpenerDirector()  # only HTTP, and no redirects: the URL is a secret, for its host alone
    for handler in (ProxyHandler, HTTPHandler, HTTPDefaultErrorHandler, HTTPErrorProcessor):
        opener.add_handler(handler())
    opener.add_handler(HTTPSHandler(context=ssl.create_default_context()))
    try:
        with opener.open(Request(url, content, headers), timeout=seconds):
            return Delivery(Outcome.SENT)
    except HTTPError as error:  # also a redirect
        error.close()
        return Delivery(Outcome.REFUSED, f"HTTP status {error.code}")
    except URLError as error:  # not sent, or not completely
        why = error.reason
        return Delivery(Outcome.REFUSED, why.strerror or type(why).__name__ if isinstance(why, OSError) else str(why))
    except (ValueError, InvalidURL):  # their messages contain the URL
        return Delivery(Outcome.REFUSED, "invalid URL")
    except (OSError, HTTPException) as error:  # while waiting for the response
        return Delivery(Outcome.UNKNOWN, f"no response: {type(error).__name__}")


def to_command(argv: Sequence[str], text: str, environment: Mapping[str, str], seconds: float) -> Delivery:
    """Run a command with `text` on stdin; after `seconds` it is killed with its child processes."""
    try:
        process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=2, env=environment, start_new_session=True)
    except (OSError, ValueError) as error:
        return Delivery(Outcome.REFUSED, f"cannot start: {getattr(error, 'strerror', None) or error}")
    try:
        process.communicate(text.encode(errors="replace"), timeout=seconds)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return Delivery(Outcome.UNKNOWN, f"killed after {seconds:.0f} s")
    code = process.returncode
    return Delivery(Outcome.SENT) if code == 0 else Delivery(Outcome.REFUSED, f"exit code {code}")


def within(seconds: float, send: Callable[[], Delivery]) -> Delivery:
    """The result of `send` within `seconds`: a server that answers byte by byte never reaches a timeout."""
    answers: list[Delivery] = []
    thread = threading.Thread(target=lambda: answers.append(send()), name="notify", daemon=True)
    thread.start()
    thread.join(seconds)
    return answers[0] if answers else Delivery(Outcome.UNKNOWN, f"no response within {seconds:.0f} s")

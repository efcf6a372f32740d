"""Sends the pending notifications of one run to the channels in its `[notify]`.

Below: which events of a run are worth one, the message, and the files that make each message sent at most once. A
message goes to a webhook or a command; errors are returned without the URL. `main` does this on a node, from the run's
files, in a few seconds, and logs to host.log.
"""

from __future__ import annotations

import json
import os
import signal
import ssl
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from enum import StrEnum
from http.client import HTTPException, InvalidURL
from itertools import zip_longest
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

from clusterctl.launcher.config.secrets import secrets_of
from clusterctl.launcher.diagnosis.diagnose import diagnose_status
from clusterctl.launcher.observe.attempt import read_alarm
from clusterctl.launcher.observe.state import NEVER_STARTS
from clusterctl.launcher.observe.status import no_slurm, statuses_of
from clusterctl.launcher.observe.sweeps import best_value
from clusterctl.shared.errors import ClusterctlError
from clusterctl.shared.node.node_watch import alarm_of
from clusterctl.shared.record.files import read_beginning
from clusterctl.shared.record.heartbeats import IDLE, IDLE_GPUS
from clusterctl.shared.record.layout import RunDir
from clusterctl.shared.record.plain_text import duration, plain
from clusterctl.shared.record.states import State
from clusterctl.shared.spec.job import RunEvent
from clusterctl.shared.spec.values import plural

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from pathlib import Path

    from clusterctl.launcher.diagnosis.diagnose import SlurmOf
    from clusterctl.launcher.observe.state import Status
    from clusterctl.shared.record.metrics import Metric, Number


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


WAIT_SECONDS = 4.0  # for a connection, and for a response
SECONDS = 6.0  # in total for one message


class Try(NamedTuple):
    """One attempt to send a message: the event, the channel ("webhook", "command"), and the outcome."""

    run: str
    what: Happened
    channel: str
    delivery: Delivery


@dataclass(frozen=True)
class Notifier:
    """Sends notifications until `deadline` (by `clock`): no message is started that could take longer."""

    environment: Mapping[str, str]
    slurm_of: SlurmOf
    deadline: float = float("inf")
    clock: Callable[[], float] = time.monotonic

    def send_pending(self, status: Status) -> Iterator[Try]:
        """Send pending messages and yield each try. Skips another user's run, whose record may name commands."""
        wanted, record = status.record.job.notify, status.record
        if not wanted.wanted or not record.is_ours:
            return
        stalled = {attempt.number for attempt in record.run.attempts() if alarm_of(attempt)}
        for one in happened(status, stalled):
            channels = [*(["webhook"] if wanted.url_variable else []), *(["command"] if wanted.command else [])]
            due = {name: path for name in channels if (path := next_try(record.run.notified, f"{one.name}.{name}"))}
            if one.event not in wanted.events or not due:
                continue
            cause = ""
            if one.event is RunEvent.STALLED:
                cause = _stall(status, one.attempt)
            elif one.event is not RunEvent.FINISHED:
                found = diagnose_status(status, self.slurm_of)
                of_attempt = (finding for finding in found.history if finding.attempt == one.attempt)
                cause = str(found.headline if one.event is RunEvent.FAILED else next(of_attempt, ""))
            secrets = secrets_of(record.job, record.cluster, self.environment).having(dict(self.environment))
            message = Message(
                event=one.event,
                run=record.run.id,
                job=record.job.name,
                attempt=one.attempt,
                cause=secrets.hide(cause),
                seconds=status.ran(time.time()),
                best=best_value(record.run, status.metrics),
            )
            for name, path in due.items():
                if self.clock() + SECONDS > self.deadline:
                    return
                if (delivery := self._try(status, message, name, path)) is not None:
                    yield Try(record.run.id, one, name, delivery)

    def _try(self, status: Status, message: Message, channel: str, path: Path) -> Delivery | None:
        """None if another process was faster."""
        wanted = status.record.job.notify
        url = self.environment.get(wanted.url_variable or "", "")
        if channel == "webhook" and not url:  # does not count as a try
            return Delivery(Outcome.REFUSED, f"{wanted.url_variable} is not set in the environment")
        if not take(path):
            return None
        if channel == "webhook":
            delivery = within(SECONDS, lambda: to_webhook(url, message.content(wanted.format), WAIT_SECONDS))
        else:
            variables = {"CLUSTERCTL_EVENT": message.event, "CLUSTERCTL_RUN_DIR": str(status.record.run.path)}
            delivery = to_command(wanted.command, message.text, {**self.environment, **variables}, WAIT_SECONDS)
        note(path, delivery)
        return delivery


def _stall(status: Status, number: int) -> str:
    """The watchdog's alarm in words."""
    attempt = status.record.run.attempt(number)
    alarm = read_alarm(attempt.hang_json) or read_alarm(attempt.hang_report_json)
    if alarm is None:
        return ""
    still = duration(alarm.still_seconds)
    if alarm.how == IDLE_GPUS:
        return f"all GPUs idle for {still}"
    if alarm.how == IDLE:
        return f"all ranks idle for {still}"
    first, *others = sorted(alarm.suspects) or [alarm.seen]
    more = f" and {plural(len(others), 'other')}" if others else ""
    return f"rank {first}{more} made no progress for {still} ({alarm.phase})"


# Which events of a run are worth a notification; pure functions.


class Happened(NamedTuple):
    """An event and its attempt; for a run that never started, the attempt it did not start."""

    event: RunEvent
    attempt: int

    @property
    def name(self) -> str:
        return f"{self.event}-{self.attempt}"


def happened(status: Status, stalled: Collection[int]) -> Iterator[Happened]:
    """All events so far; `stalled` are the attempts in which the watchdog raised an alarm."""
    for attempt, following in zip_longest(status.attempts, status.attempts[1:]):
        if attempt.number in stalled:
            yield Happened(RunEvent.STALLED, attempt.number)
        # After a preemption or the loss of a node the run goes on without a word of its script; a resume is a new job.
        again = following is not None and (
            attempt.job_id == following.job_id or attempt.number >= status.record.past_attempts
        )
        if attempt.requeued or attempt.restarting or again:
            yield Happened(RunEvent.RESTARTED, attempt.number)
    if not status.state.ended or not status.sure:  # it is or may be active
        return
    if status.state is State.CANCELLED and status.reason != NEVER_STARTS:  # the user who cancelled it knows
        return
    last = status.attempts[-1].number if status.attempts else 0
    event = RunEvent.FINISHED if status.state is State.FINISHED else RunEvent.FAILED
    yield Happened(event, max(last, status.record.past_attempts))


# A message: the event, run, cause, duration and best score; and its formats for webhooks.


_LONGEST = 500  # characters of a cause, which may be a long exception
_FOR_SLACK = str.maketrans(
    {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
)  # as Slack's documentation requires: `<` starts a mention


@dataclass(frozen=True)
class Message:
    """The content of a message. `best` is the best value so far of the run's ranking metric."""

    event: RunEvent
    run: str
    job: str
    attempt: int
    cause: str = ""
    seconds: float | None = None  # total running time of its attempts
    best: tuple[Metric, Number] | None = None

    @property
    def text(self) -> str:
        """Plain text of two or three lines."""
        after = "" if self.seconds is None else f" after {duration(self.seconds)}"
        cause = f": {self._cause}" if self._cause else ""
        best = f", best {self.best[0].label} {self.best[0].text(self.best[1])}" if self.best else ""
        lines = [f"{self.job} {self.event}{after}{cause}", f"run {self.run}, attempt {self.attempt}{best}"]
        if self.event in (RunEvent.FAILED, RunEvent.STALLED):
            lines.append(f"clusterctl why {self.run}")
        return "\n".join(map(plain, lines))

    def content(self, form: str) -> bytes:
        """The body for a webhook of that format ("json", "slack", "matrix")."""
        if form == "slack":
            record: dict[str, object] = {"text": self.text.translate(_FOR_SLACK)}
        elif form == "matrix":
            record = {"msgtype": "m.text", "body": self.text}
        else:
            best = {"metric": self.best[0].name, "value": self.best[1]} if self.best else None
            record = asdict(self) | {"cause": self._cause, "best": best, "text": self.text}
        return json.dumps(record, allow_nan=False).encode()

    @property
    def _cause(self) -> str:
        cause = plain(self.cause)
        return cause if len(cause) <= _LONGEST else f"{cause[:_LONGEST]}..."


# Sends each message at most once, by creating a file for each try before sending.


MOST_TRIES = 10
_LONGEST_OUTCOME = 4096


def next_try(folder: Path, name: str) -> Path | None:
    """The file of the next try; None if the message was or may have been sent, or was refused too often."""
    for number in range(MOST_TRIES):
        path = folder / f"{name}.{number}"
        try:
            text = read_beginning(path, _LONGEST_OUTCOME).decode(errors="replace")
        except FileNotFoundError:
            return path
        if not text.startswith(Outcome.REFUSED):
            return None
    return None


def take(path: Path) -> bool:
    """Claim the try for this process, if it is free. Raises OSError if nothing can be written: then nobody may send."""
    path.parent.mkdir(mode=0o700, exist_ok=True)
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        return False
    return True


def note(path: Path, delivery: Delivery) -> None:
    """Record the outcome of the try. If the disk is full, the try is not repeated."""
    with suppress(OSError):
        path.write_text(f"{delivery}\n", encoding="utf-8")


ON_NODE_SECONDS = 8.0  # the batch script kills this process after 9


def main(folder: Path) -> None:
    """Send the pending messages about the run in `folder`; the rest is left to `clusterctl notify`."""
    notifier = Notifier(dict(os.environ), no_slurm, time.monotonic() + ON_NODE_SECONDS)
    try:
        for status in statuses_of([RunDir(folder)], no_slurm).statuses:
            for one in notifier.send_pending(status):
                if one.delivery.outcome is not Outcome.SENT:
                    print(f"clusterctl[notify]: {one.what.event}: {one.channel}: {one.delivery}", file=sys.stderr)
    except (ClusterctlError, OSError) as error:
        print(f"clusterctl[notify]: {error}", file=sys.stderr)

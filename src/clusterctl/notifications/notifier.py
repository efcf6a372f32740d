"""Sends the pending notifications of one run to the channels in its `[notify]`."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from clusterctl.config.secrets import secrets_of
from clusterctl.diagnosis.diagnose import diagnose_status
from clusterctl.diagnosis.traces import parse_alarm
from clusterctl.notifications.happened import happened
from clusterctl.notifications.message import Message
from clusterctl.notifications.send import Delivery, Outcome, to_command, to_webhook, within
from clusterctl.notifications.tries import next_try, note, take
from clusterctl.observe.best import best_value
from clusterctl.runs.fields import read_fields
from clusterctl.runs.node_watch import alarm_of
from clusterctl.runs.plain_text import duration
from clusterctl.runs.watchdog import IDLE, IDLE_GPUS
from clusterctl.spec.notify import RunEvent
from clusterctl.spec.values import plural

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from clusterctl.diagnosis.diagnose import SlurmOf
    from clusterctl.notifications.happened import Happened
    from clusterctl.observe.stage import Status

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
            message = self._message(status, one)
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

    def _message(self, status: Status, one: Happened) -> Message:
        record = status.record
        secrets = secrets_of(record.job, record.cluster, self.environment).having(dict(self.environment))
        return Message(
            event=one.event,
            run=record.run.id,
            job=record.job.name,
            attempt=one.attempt,
            cause=secrets.hide(self._cause(status, one)),
            seconds=status.ran(time.time()),
            best=best_value(record.run, status.metrics),
        )

    def _cause(self, status: Status, one: Happened) -> str:
        """The cause on one line; empty for a finished run."""
        if one.event is RunEvent.FINISHED:
            return ""
        if one.event is RunEvent.STALLED:
            return _stall(status, one.attempt)
        found = diagnose_status(status, self.slurm_of)
        of_attempt = (finding for finding in found.history if finding.attempt == one.attempt)
        return str(found.headline if one.event is RunEvent.FAILED else next(of_attempt, ""))


def _stall(status: Status, number: int) -> str:
    """The watchdog's alarm in words."""
    attempt = status.record.run.attempt(number)
    alarms = map(parse_alarm, map(read_fields, (attempt.hang_json, attempt.hang_report_json)))
    alarm = next(filter(None, alarms), None)
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

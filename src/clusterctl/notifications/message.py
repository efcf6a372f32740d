"""A message: the event, run, cause, duration and best score; and its formats for webhooks."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from clusterctl.runs.plain_text import duration, plain
from clusterctl.spec.notify import RunEvent

if TYPE_CHECKING:
    from clusterctl.runs.vocabulary import Metric, Number

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

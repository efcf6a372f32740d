"""A message: what happened to which run, why, after how long, and how good it was; and its forms for webhooks."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from clusterctl.runs.plain_text import duration, plain
from clusterctl.spec.notify import RunEvent

if TYPE_CHECKING:
    from clusterctl.runs.vocabulary import Metric, Number

_LONGEST = 500  # characters of a cause, which may be a whole exception
_FOR_SLACK = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})  # as its documentation asks: `<` begins a mention


@dataclass(frozen=True)
class Message:
    """What is sent. `best` is the best value so far of the metric that the run is judged by."""

    event: RunEvent
    run: str
    job: str
    attempt: int
    cause: str = ""
    seconds: float | None = None  # that its attempts have run
    best: tuple[Metric, Number] | None = None

    @property
    def text(self) -> str:
        """For people: plain text of two or three lines."""
        after = "" if self.seconds is None else f" after {duration(self.seconds)}"
        cause = f": {self._cause}" if self._cause else ""
        best = f", best {self.best[0].label} {self.best[0].text(self.best[1])}" if self.best else ""
        lines = [f"{self.job} {self.event}{after}{cause}", f"run {self.run}, attempt {self.attempt}{best}"]
        if self.event in (RunEvent.FAILED, RunEvent.STALLED):
            lines.append(f"clusterctl why {self.run}")
        return "\n".join(map(plain, lines))

    def content(self, form: str) -> bytes:
        """What a webhook of that form ("json", "slack", "matrix") is sent."""
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

"""Values over time in constant memory, for thousands of ranks that need no curve each."""

from __future__ import annotations

from dataclasses import dataclass

_FIRST_SECONDS = 5.0  # weight of the first value, whose duration is unknown


@dataclass(slots=True)
class Spread:
    """The lowest, highest and newest of the added values; None before the first."""

    low: float | None = None
    high: float | None = None
    last: float | None = None
    _time: float | None = None
    _total: float = 0.0
    _seconds: float = 0.0

    def add(self, time: float, value: float) -> None:
        """Add a `value` that was valid until `time`."""
        seconds = _FIRST_SECONDS if self._time is None else max(0.0, time - self._time)
        self.low = value if self.low is None else min(value, self.low)
        self.high = value if self.high is None else max(value, self.high)
        self.last, self._time = value, time
        self._total += value * seconds
        self._seconds += seconds

    def mean(self) -> float | None:
        """The mean over time."""
        return self._total / self._seconds if self._seconds else None

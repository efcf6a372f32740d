"""Values over the time in constant memory: of thousands of ranks nobody looks at a curve each."""

from __future__ import annotations

from dataclasses import dataclass

_FIRST_SECONDS = 5.0  # that the first value counts for, as nobody knows since when it held


@dataclass(slots=True)
class Spread:
    """The lowest, the highest and the newest of the values that were added, None before the first."""

    low: float | None = None
    high: float | None = None
    last: float | None = None
    _time: float | None = None
    _total: float = 0.0
    _seconds: float = 0.0

    def add(self, time: float, value: float) -> None:
        """`value` held until `time`."""
        seconds = _FIRST_SECONDS if self._time is None else max(0.0, time - self._time)
        self.low = value if self.low is None else min(value, self.low)
        self.high = value if self.high is None else max(value, self.high)
        self.last, self._time = value, time
        self._total += value * seconds
        self._seconds += seconds

    def mean(self) -> float | None:
        """The mean over the time."""
        return self._total / self._seconds if self._seconds else None

"""A function of the user's code that a key names: a loss, a metric, an optimizer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from clusterctl.engine.training.own.model import described, found
from clusterctl.shared.errors import Cause, TaskError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class OwnFunction:
    """Calls the function `name` that the key `key` names, with errors that say which one, and where it is."""

    def __init__(self, key: str, name: str) -> None:
        """Raises TaskError if there is no such function."""
        self.key, self.name = key, name
        self._function: Callable[..., Any] = found(name, key)
        if not callable(self._function):
            raise self.wrong(f"it is {shown(self._function)}, not a function")

    def __call__(self, given: Mapping[str, object], **options: object) -> Any:
        """Its result for the values of `given`; their names are for messages. Raises TaskError."""
        try:
            return self._function(*given.values(), **options)
        except TaskError:
            raise
        except Exception as error:
            on = ", ".join(f"{name} {shown(value)}" for name, value in given.items())
            message = f"{self.key} = {self.name} fails on {on}: {described(error)}"
            raise TaskError(message, cause=Cause.USER) from error

    def wrong(self, what: str, hint: str = "") -> TaskError:
        """The error that the function gave something unusable, with its place in the user's code."""
        code = getattr(self._function, "__code__", None)
        place = f" ({Path(code.co_filename).name}, line {code.co_firstlineno})" if code else ""
        return TaskError(f"{self.key} = {self.name}{place}: {what}", hint, Cause.USER)


def shown(value: object) -> str:
    """The shape of a tensor, the type of anything else."""
    return f"{[*value.shape]}" if isinstance(value, Tensor) else type(value).__name__

"""The result of one check: shown by `doctor`, returned by the API, and a reason for `submit` and `resume` to refuse."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from clusterctl.shared.errors import ClusterctlError, ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

NO_DATA = "set data.root to the folder of the data set"  # the hint of two checks


class Verdict(StrEnum):
    OK = "OK"
    WARN = "WARN"
    FAIL = "FAIL"


@dataclass(frozen=True)
class Check:
    """One result. A failed check is fatal: the run would not work.

    `hint` is the command to type or the request to make. If other settings would pass, `changes` are these settings (as
    for `--set`) and `first` is the command to run first.
    """

    name: str
    verdict: Verdict
    message: str
    hint: str = ""
    changes: Mapping[str, str] = field(default_factory=dict)
    first: str = ""
    error: type[ClusterctlError] = ConfigError  # what a refusal raises

    @property
    def fatal(self) -> bool:
        return self.verdict is Verdict.FAIL


def ok(name: str, message: str) -> Check:
    return Check(name, Verdict.OK, message)


def warn(name: str, message: str, hint: str) -> Check:
    return Check(name, Verdict.WARN, message, hint)


def fail(name: str, message: str, hint: str) -> Check:
    return Check(name, Verdict.FAIL, message, hint)

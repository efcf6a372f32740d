"""What launchers print when one of their workers has failed, read from the end of their output.

torchrun and accelerate exit with 1 whatever happened to the worker. Their last words, on stderr, say whether it ended
by itself or was killed:

    torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
    ============================================================
    train.py FAILED
    ------------------------------------------------------------
    Failures:
      <NO_OTHER_FAILURES>
    ------------------------------------------------------------
    Root Cause (first observed failure):
    [0]:
      rank      : 3 (local_rank: 1)
      exitcode  : -9 (pid: 4711)
      traceback : Signal 9 (SIGKILL) received by PID 4711
    ============================================================

and, from accelerate with one worker, `subprocess.CalledProcessError: Command '[...]' died with <Signals.SIGKILL: 9>.`
deepspeed exits with the worker's code, and prints on stdout:

    [2026-11-26 00:46:41,123] [ERROR] [launch.py:325:sigkill_handler] ['python', ...] exits with return code = -9
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from signal import SIGKILL
from typing import TYPE_CHECKING

from clusterctl.shared.record.files import read_regular

if TYPE_CHECKING:
    from pathlib import Path

_MOST_BYTES = 1 << 18  # a summary has a few lines for each of a node's workers
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_TIME = re.compile(r"(?m)^\d{4}-\d\d-\d\dT[\d:.]+Z ")  # our own prefix (shared/record/stamp.py)
# Python's resource tracker may speak after the launcher, and so does a shell with `set -x`.
_AFTER = re.compile(r"\s*|\++ .*|.*resource_tracker.*|  warnings\.warn\(.*")
_TORCHRUN = re.compile(r"(?:torch[\w.]*\.)?ChildFailedError:\s*$")
_FAILED = re.compile(r"\s*\S.* FAILED\s*")
_RULE = re.compile(r"\s*([=*-])\1{7,}\s*")
_ENTRY = re.compile(r"\s*\[\d+\]:\s*")
_FIELD = re.compile(r"  (time|host|rank|exitcode|error_file|traceback|msg)\s*: ?(.*)")
_RANK = re.compile(r"(\d+)(?: \(local_rank: (\d+)\))?")
_CODE = re.compile(r"(-?\d+)(?: \(pid: (\d+)\))?")
_CLOSED = re.compile(r"Sending process (\d+) closing signal")
_ONE_WORKER = re.compile(
    r"(?:subprocess\.)?CalledProcessError: Command .* "
    r"(?:died with (?:<Signals\.\w+: |unknown signal )(?P<signal>\d+)>?|returned non-zero exit status (?P<code>\d+))\."
)
_DEEPSPEED = re.compile(r"\[[\d :,-]+\] \[ERROR\] \[launch\.py:\d+:\w+\] \[.*\] exits with return code = (-?\d+)")
_ACCELERATE = re.compile(r'  File ".*\baccelerate[/.]commands[/.].*", line \d+, in simple_launcher')


@dataclass(frozen=True)
class Worker:
    """A failed worker of a launcher. A negative exit code is the signal that killed it, as in `subprocess`."""

    exit_code: int
    rank: int | None = None
    local_rank: int | None = None
    pid: int | None = None
    host: str = ""
    message: str = ""  # as the launcher has it: "Signal 9 (SIGKILL) received by PID 4711", a traceback, or a link


@dataclass(frozen=True)
class Summary:
    """The last words of a launcher; `first` is the worker that failed first, and made it end the others."""

    launcher: str  # "torchrun" (also within accelerate), "accelerate" or "deepspeed"
    first: Worker
    others: tuple[Worker, ...] = ()


def read_summary(log: Path) -> Summary | None:
    """The summary at the end of a rank's log; None if there is none, or the log cannot be read."""
    try:
        content = read_regular(log, lambda file: (file.seek(max(0, file.seek(0, 2) - _MOST_BYTES)), file.read())[1])
    except OSError:
        return None
    text = content.decode(errors="replace")
    if found := summary_of(text):
        return found
    # deepspeed ends with the first worker that fails, and this is the last line of its node.
    code = _DEEPSPEED.fullmatch(_TIME.sub("", text).rstrip().rpartition("\n")[2])
    return Summary("deepspeed", Worker(int(code[1]))) if code else None


def summary_of(output: str) -> Summary | None:
    """The summary with which `output` ends, or None: a program may print anything earlier, and go on."""
    lines = _TIME.sub("", _COLOUR.sub("", output)).splitlines()
    while lines and _AFTER.fullmatch(lines[-1]):
        lines.pop()
    if not lines:
        return None
    if _RULE.fullmatch(lines[-1]):
        return _of_torchrun(lines)
    ended = _ONE_WORKER.fullmatch(lines[-1])
    begun = [number for number, line in enumerate(lines) if line.startswith("Traceback (most recent call last):")]
    if ended is None or not begun or not any(_ACCELERATE.match(line) for line in lines[begun[-1] :]):
        return None
    code = -int(ended["signal"]) if ended["signal"] else int(ended["code"])
    return Summary("accelerate", Worker(code, rank=0, local_rank=0))


def _of_torchrun(lines: list[str]) -> Summary | None:
    starts = [number for number, line in enumerate(lines) if _TORCHRUN.match(line)]
    if not starts:
        return None
    block = lines[starts[-1] + 1 :]
    if len(block) < 4 or not _RULE.fullmatch(block[0]) or not _FAILED.fullmatch(block[1]):
        return None
    if any(line.strip() and not line.startswith(" ") for line in block if not _is_heading(line)):
        return None  # something else was printed after the summary
    roots: list[Worker] = []
    others: list[Worker] = []
    found = others
    for number, line in enumerate(block):
        if line.strip().startswith("Root Cause"):
            found = roots
        elif line.strip() in ("Failures:", "Other Failures:"):
            found = others
        elif _ENTRY.fullmatch(line) and (worker := _worker(block[number + 1 :])) is not None:
            found.append(worker)
    if len(roots) != 1:
        return None
    closed = {int(pid) for line in lines[: starts[-1]] for pid in _CLOSED.findall(line)}
    (first,) = roots
    # Of failures within a second it takes the lowest rank's, which may be the connection that a killed one has broken.
    killed = (one for one in others if one.exit_code == -SIGKILL and one.pid is not None and one.pid not in closed)
    if first.exit_code > 0 and (other := next(killed, None)) is not None:
        others = [first, *(one for one in others if one is not other)]
        first = other
    return Summary("torchrun", first, tuple(others))


def _worker(lines: list[str]) -> Worker | None:
    """The worker that these lines describe, up to the next entry. A traceback may continue on further lines."""
    fields: dict[str, str] = {}
    name = ""
    for line in lines:
        if _is_heading(line):
            break
        if (field := _FIELD.match(line)) and field[1] not in fields:
            name = field[1]
            fields[name] = field[2].strip()
        elif name in ("traceback", "msg"):
            fields[name] += f"\n{line[2:]}"
    code, rank = _CODE.match(fields.get("exitcode", "")), _RANK.match(fields.get("rank", ""))
    if code is None:
        return None
    return Worker(
        exit_code=int(code[1]),
        rank=int(rank[1]) if rank else None,
        local_rank=int(rank[2]) if rank and rank[2] else None,
        pid=int(code[2]) if code[2] else None,
        host=fields.get("host", ""),
        message=(fields.get("traceback") or fields.get("msg") or "").strip(),
    )


def _is_heading(line: str) -> bool:
    words = line.strip()
    return bool(
        _RULE.fullmatch(line)
        or _ENTRY.fullmatch(line)
        or _FAILED.fullmatch(line)
        or words.startswith("Root Cause")
        or words in ("Failures:", "Other Failures:")
    )

"""What a rank's stderr ends with: its exceptions, read whole, the summary of its launcher, and its own last line.

A traceback in the middle proves nothing, because programs log exceptions that they survive. It counts as the end only
if nothing of the program follows it: what Python, torch, the launchers and Slurm write while a process shuts down is
listed in _NOISE. One stderr may have lines of many processes: those of torchrun's workers, or of `srun --label`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import takewhile
from typing import TYPE_CHECKING, NamedTuple

from clusterctl.shared.node.launchers import Worker, summary_of
from clusterctl.shared.record.plain_text import plain

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

_HEADER = "Traceback (most recent call last):"
_GROUP = re.compile(r"\s*\+ Exception Group Traceback \(most recent call last\):$")
_GROUP_LINE = re.compile(r"\s+[|+]")
_OF_GROUP = re.compile(r"\(\d+ sub-exceptions?\)$")
_IN_GROUP = re.compile(r"\s*\| (?P<message>[A-Za-z_][\w.<>]*(?:: .*)?)$")
_BAR = re.compile(r"\d+%\|")  # a progress bar, which may share its line with what follows
_SYNTAX = re.compile(r'  File "[^"]+", line \d+$')  # of an error found while compiling, which has no header
_EXCEPTION = re.compile(r"(?P<type>[A-Za-z_][\w.<>]*)(?::(?: .*)?)?$")  # the line after the frames
_TYPICAL = re.compile(r"[A-Za-z_][\w.<>]*(?:Error|Exception|Interrupt|Exit|Warning|Iteration|Failed)(?::(?: .*)?)?$")
_DIRECT = "The above exception was the direct cause of the following exception:"
_DURING = "During handling of the above exception, another exception occurred:"
_REMOTE = re.compile(r"[\w.]*RemoteTraceback: *$")  # a worker's traceback between lines of three quotes
_QUOTES = '"""'
_ORIGINAL = f"Original {_HEADER}"  # of a DataLoader's worker, within the message
# Further lines of a message by torch, NCCL and CUDA, which begin at the margin.
_CONTINUES = re.compile(
    r"nccl\w+(Error|Usage): |Last error:|CUDA kernel errors might be|For debugging consider passing CUDA_LAUNCH"
    r"|: \w+(?:\.\w+)+(?:Error|Exception)\b|Compile with `?TORCH_USE_CUDA_DSA|Device-side assertion"
    r"|Exception raised from |frame #\d+|Search for `cuda|-- Process \d+ terminated with the following error:"
)
# Lines after which a traceback is not the end of its process: of a log, a thread, a child, or Python's shutdown.
_LOGGED = re.compile(
    r"(?:\[?\d{4}-\d\d-\d\d|\[?\d\d:\d\d:\d\d|\[?[\d:., -]*\b(?:DEBUG|INFO|WARN|WARNING|ERROR|CRITICAL|FATAL)\b"
    r"|[IWEF]\d{3,4} |[\w./]*\[(?:DEBUG|INFO|WARN|WARNING|ERROR|CRITICAL)\])"
)
_NOT_OF_MAIN = re.compile(
    r"Exception in thread |Process \S+:$|Task exception was never retrieved|Exception in callback"
)
_AT_SHUTDOWN = re.compile(r"Exception ignored |Error in atexit|Error in sys\.excepthook")
SLURMS_LINE = re.compile(r"(?:slurmstepd|srun|slurm_script)[\w.-]*: ")
_CANCELLED = re.compile(r"(?:slurmstepd|srun)[\w.-]*: .*\*\*\* (?:STEP|JOB) \S+ ON \S+ CANCELLED AT ")
_NOISE = re.compile(
    "|".join(
        (
            SLURMS_LINE.pattern,
            r"\S+:\d+: \w*Warning: |sys:1: \w*Warning: ",
            r"\[?[IWE]\d{3,4} .*(?:torch[/.]|ProcessGroup|c10d|TCPStore|socket\.cpp|Logger\.cpp|Module\.cpp)",
            r"(?:DEBUG|INFO|WARNING|ERROR):torch\.",
            r"\[\d{4}-\d\d-\d\d [\d:,]+\] torch\.distributed\.",
            r".*\bNCCL (?:INFO|WARN|TRACE|VERSION)",
            r"wandb: |Set the environment variable HYDRA_FULL_ERROR|Error executing job with overrides",
            r"[-=*_]{12,}$",
            r"terminate called without an active exception",
            r"(?:mpirun|mpiexec|prterun|orterun)[ :]|MPI_ABORT was invoked|Primary job +terminated|Per user-direction",
            r"\[[\w.-]+:\d+\] (?:\*\*\*|\[ ?\d+\]|PMIX|OPAL)",
            r"\[\d{4}-\d\d-\d\d [\d:,]+\] \[\w+\] \[launch\.py:\d+:",  # deepspeed
            r"(?:Killing subprocess|Sentry is attempting|Waiting up to|Press Ctrl-C)",
        )
    )
)
# Last lines that only say that something failed, or how to look it up.
_SAYS_NOTHING = re.compile(
    r"[\W_]*(?:exit(?:ing|ed)?|abort(?:ing|ed)?|terminat(?:ing|ed)|bye|done|failed|giving up|quit(?:ting)?"
    r"|stopp(?:ing|ed)|shutting down|cleaning up|clean ?up|error|fatal|core dumped|killed)[\W_]*"
    r"(?:now|with (?:an? )?(?:error|failure|exit code|code|status)s?[ :]*-?\d*|\(core dumped\))?[\W_]*$"
    r"|.*\b(?:see|check|consult)\b.*\b(?:logs?|output|above|traceback)\b.*$"
    r"|(?:make|ninja|npm)(?:\[\d+\])?: |npm (?:ERR!|error) A complete log|\S*compilation terminated\.|collect2: "
    r"|Execution halted|Calls: |tar: (?:Exiting with failure|Error is not recoverable|Child returned)"
    r"|rsync error: .*\(code \d+\) at |zip error: |E: Unable to fetch some|\d+\+\d+ records |\d+ bytes .*copied"
    r"|fatal: Could not read from remote repository|Please make sure you have the correct access"
    r"|and the repository exists\.|This typically refers to a problem with|Please see the FAQ"
    r"|\s+at \S.*[)\d]$|\s*\.{3} \d+ more$|Stacktrace:|\s+\[\d+\] |\s+@ |in expression starting at |Node\.js v\d"
    r"|goroutine \d+ |[\w/.-]+\.[\w.*()]+\([\da-fx, .{}?]*\)$|\s+\S+:\d+ \+0x|stack backtrace:|\s+\d+: +\S+$"
    r"|.*\b(?:exited|exit|returned) (?:with )?(?:a )?(?:non-?zero )?(?:exit )?(?:code|status)[ :]*-?\d*\.?$",
    re.IGNORECASE,
)
# A line about something that the program survived, and one below the level of an error.
_SURVIVED = re.compile(
    r"\b(?:retry|retries|retrying|retried|try(?:ing)? again|continu(?:e|es|ing)|skipp(?:ed|ing)|ignor(?:ed|ing)"
    r"|recover(?:ed|ing)|fall(?:s|ing)? back|fallback|reconnect(?:ed|ing)?|instead|resum(?:ed|ing)|taking"
    r"|going on|goes on|restart(?:ed|ing|s)?)\b",
    re.IGNORECASE,
)
_CALLED_SURVIVED = re.compile(
    rf"(?=.{{0,60}}?\bWARN(?:ING)?\b)|(?=.{{0,60}}?\b(?:ERROR|CRITICAL|FATAL)\b).*{_SURVIVED.pattern}", re.IGNORECASE
)
_MINOR = re.compile(
    r".{0,60}?(?:(?<!NCCL )\b(?:TRACE|DEBUG|INFO|NOTICE|WARN|WARNING)\b|^(?i:info|warn|warning|note)\b)|\[?[IW]\d{3,4} "
    r"|\S+:\d+: \w*Warning: |\s+warnings\.warn\("
)
# How shells, make, xargs, mpirun and programs report that a signal ended their child.
_SIGNALLED = (
    r"(?:Killed|Terminated|Segmentation fault|Aborted|Bus error|Floating point exception|Illegal instruction)\b"
)
_CHILD_ENDED = re.compile(
    rf"(?:.*: )?line \d+: +\d+ {_SIGNALLED}(?: {{2}}|$)|\S*make(?:\[\d+\])?: \*\*\* .*\] {_SIGNALLED}"
    rf"|{_SIGNALLED}(?: \(core dumped\))?$"
    r"|.*\b(?i:terminated|killed|exited|died|crashed|ended)\b.{0,40}?\b(?:(?i:signal):? ?\d|SIG[A-Z]+\b)"
    r"|.*\bsignal: (?i:killed|segmentation fault|aborted|bus error|terminated|\d+)|.*\bSignal \d+ \(SIG\w+\) received"
    r"|.*\b(?:EXIT STRING: |(?:status|code|Error)[ :=]*)(?:Killed|Segmentation fault|13[4-79])\b"
)
# A line that says that something failed, and nothing about why.
_VERDICT = re.compile(
    r".*\b(?:fail(?:ed|ure|s)?|error|abort(?:ed|ing|s)?|giving up|gave up|stopp(?:ed|ing)|unsuccessful)\b"
    r"(?:[ :(]+(?:with|exit|code|status|in|at|after|[\d.()s-]+)\b.{0,16})?[.!)]*$",
    re.IGNORECASE,
)
_MOST_FOREIGN_LINES = 3  # of other processes within a traceback
_INDENT = (" ", "\t")

# Whose line it is: torch.distributed's "[rank3]: ", torchrun's "[default0]:", "[node:3]:", mpirun's "[1,3]<stderr>:".
_PREFIX = re.compile(
    r"\[(?P<name>default|\d+,)(?P<rank>\d+)\](?:<\w+>)?:|\[(?P<node>rank|[A-Za-z][\w.-]*[:/ ])(?P<of_node>\d+)\]: ?"
)
_LABEL = re.compile(r" *(?P<rank>\d+): ")  # srun --label
_LABELLED = re.compile(r" *\d+: (?:Traceback \(most recent|  File |\[rank\d)")

_RULE = re.compile(r"[=-]{8,}\s*")
_CHILD_FAILED = re.compile(r"(?:[\w.]+\.)?ChildFailedError\b")
_ENDED_CHILD = re.compile(r"(?:[\w.]+\.)?CalledProcessError: Command ")
_LAUNCHER_FILES = re.compile(
    r'File "[^"]*(?:accelerate/commands/|torch/distributed/(?:run|launch)|deepspeed/launcher/)'
)
# Launchers that report on one line.
_ONE_LINE = (
    re.compile(
        r"(?:mpirun|mpiexec|prterun|orterun) noticed that process rank (?P<rank>\d+) .* on signal (?P<signal>\d+)"
    ),
    re.compile(r"\[launch\.py:\d+:\w+\] .* exits with return code = (?:-(?P<signal>\d+)|(?P<code>\d+))"),
)


class StderrLine(NamedTuple):
    """A line of stderr without the prefix that names its process; `stream` is that prefix."""

    text: str
    stream: str = ""


@dataclass(frozen=True)
class PythonError:
    """An exception as Python printed it. `message` is its type and message, line by line.

    `causes` are the messages of the exceptions it was raised from, `handling` of those being handled at the time.
    `after` are the program's own lines that follow: without any, the exception ended its process. `logged`: a log or
    another thread wrote it. `survived`: that log called it a warning, or said that the program went on. `whole`: what
    follows is not part of its message.
    """

    text: str
    message: tuple[str, ...]
    stream: str = ""
    causes: tuple[str, ...] = ()
    handling: tuple[str, ...] = ()
    logged: bool = False
    survived: bool = False
    whole: bool = False
    after: tuple[str, ...] = ()
    first: int = 0  # its lines in stderr
    last: int = 0

    @property
    def type(self) -> str:
        return self.message[0].partition(":")[0].rpartition(".")[2]

    @property
    def ends(self) -> bool:
        return not self.after and not self.logged

    @property
    def is_group(self) -> bool:
        return bool(_OF_GROUP.search(self.message[0]))

    @property
    def parts(self) -> list[str]:
        """The messages of the exceptions in a group, and of those in groups within it."""
        return [message for message in self.message[1:] if self.is_group and not _OF_GROUP.search(message)]

    @property
    def may_go_on(self) -> bool:
        """Whether lines at the margin after it may belong to its message."""
        return ":" in self.message[0] and not self.is_group and not self.whole


@dataclass(frozen=True)
class LastWords:
    """A rank's stderr: the exceptions in it, the program's own lines outside of them, its launcher's summary.

    `lines` are those before Slurm cancelled the step: what processes write after that follows from it.
    `concluded`: something else was written after the launcher's summary.
    """

    lines: tuple[str, ...] = ()
    errors: tuple[PythonError, ...] = ()
    own: tuple[str, ...] = ()
    worker: Worker | None = None
    recorded: PythonError | None = None  # by that worker
    cancelled: bool = False
    concluded: bool = False

    @property
    def last(self) -> str:
        """The last own line that may give a reason; empty without one."""
        return next((line.strip() for line in reversed(self.own) if not _gives_no_reason(line)), "")

    @property
    def telling(self) -> list[str]:
        """All lines that may give a reason."""
        survived = {line for error in self.errors if error.survived for line in error.text.splitlines()}
        return [line for line in self.lines if not _gives_no_reason(line) and line not in survived]

    @property
    def ended_children(self) -> list[str]:
        """The own lines that say that a signal ended a child, and nothing of surviving that."""
        return [line.strip() for line in self.own if ended_child(line)]

    @property
    def ended_child(self) -> str:
        """The last of them, if only verdicts follow it; empty without one."""
        for line in reversed(self.own):
            if ended_child(line):
                return line.strip()
            if not is_verdict(line):
                break
        return ""

    @property
    def final(self) -> list[PythonError]:
        """The last exception of each process, in order."""
        return sorted({error.stream: error for error in self.errors}.values(), key=lambda error: error.last)

    @property
    def of_worker(self) -> PythonError | None:
        """The exception of the worker that failed first; None if it is unknown which one that is."""
        if self.worker is None or self.recorded:
            return self.recorded
        names = {f"rank{self.worker.rank}", f"default{self.worker.local_rank}"}
        return next((error for error in self.final if error.stream in names), None)


def launches(lines: Sequence[str]) -> list[tuple[str, ...]]:
    """Of output that several launchers share, one on each node: the lines up to the end of the summary of each."""
    found, begun = [], False
    for at, line in enumerate(lines):
        begun = begun or "Root Cause (first observed failure):" in line
        if begun and line.rstrip().endswith("=" * 12):
            found.append(tuple(lines[: at + 1]))
            begun = False
    return found


def ended_child(line: str) -> bool:
    return bool(_CHILD_ENDED.match(line)) and not _SURVIVED.search(line)


def survived(line: str) -> bool:
    """Whether a line says that the program goes on."""
    return bool(_SURVIVED.search(line))


def is_verdict(line: str) -> bool:
    """Whether a line only says that something failed."""
    return not _SURVIVED.search(line) and (_gives_no_reason(line) or bool(_VERDICT.match(line)))


def _gives_no_reason(line: str) -> bool:
    return bool(_SAYS_NOTHING.match(line) or _SURVIVED.search(line) or _MINOR.match(line))


@lru_cache(512)
def last_words(stderr: tuple[str, ...]) -> LastWords:
    """Read the lines of a rank's stderr."""
    texts = takewhile(lambda text: not _CANCELLED.match(text), (plain(line).rstrip() for line in stderr))
    kept = list(filter(None, texts))
    lines = _streams(kept)
    processes: dict[str, list[tuple[int, str]]] = {}  # the lines of each, numbered
    for at, (text, stream) in enumerate(lines):
        processes.setdefault(stream, []).append((at, text))
    found = sorted(
        (error for name, numbered in processes.items() for error in _errors(numbered, name)),
        key=lambda error: error.last,
    )
    worker, inside, end = _summary(lines, found)
    for error in found:
        inside |= {at for at in range(error.first, error.last + 1) if lines[at].stream == error.stream}
    own = _own_lines(lines, inside)
    conclusion = [at for at in own if at >= end]
    if worker and (
        any(error.first >= end for error in found) or not all(is_verdict(lines[at].text) for at in conclusion)
    ):
        worker = None  # the program went on
    errors = [error for error in found if not _of_launcher(error) and not _preceded_by(_AT_SHUTDOWN, lines, error)]
    read, named = [], {error.stream for error in errors if error.stream}
    for error in errors:
        streams = ("", error.stream, *(named if len(named) == 1 else ()))
        after = [lines[at].text.strip() for at in own if at > error.last and lines[at].stream in streams]
        later = [one.message[0] for one in errors if one.last > error.last and one.stream in streams]
        logged = _preceded_by(_LOGGED, lines, error) or _preceded_by(_NOT_OF_MAIN, lines, error)
        survived = _preceded_by(_CALLED_SURVIVED, lines, error)
        whole = survived or _preceded_by(_NOT_OF_MAIN, lines, error)
        read.append(replace(error, logged=logged, survived=survived, whole=whole, after=(*after, *later)))
    recorded = _errors(list(enumerate(worker.message.splitlines()))) if worker else []
    return LastWords(
        tuple(kept),
        tuple(read),
        tuple(lines[at].text for at in own),
        worker,
        recorded[-1] if recorded else None,
        any(map(_CANCELLED.match, stderr)),
        bool(conclusion),
    )


def _streams(lines: Iterable[str]) -> list[StderrLine]:
    """The lines without the prefixes that name their process."""
    labelled = any(map(_LABELLED.match, lines))
    found = []
    for text in lines:
        stream = ""
        if labelled and (label := _LABEL.match(text)):
            stream, text = f"rank{label['rank']}", text[label.end() :]
        while text.startswith("[") and (prefix := _PREFIX.match(text)):
            # torchrun's prefix and torch's own may both be there; the inner one has the rank in the world.
            stream, text = "".join(filter(None, prefix.groups())), text[prefix.end() :]
        found.append(StderrLine(text, stream))
    return found


def _errors(stream: Sequence[tuple[int, str]], name: str = "") -> list[PythonError]:
    """The exceptions among the numbered lines of one process, in order."""
    texts = [text for _, text in stream]
    found: list[PythonError] = []
    at = unfinished = 0  # headers whose exceptions are still to come: processes that wrote at the same time
    while at < len(texts):
        read = _exception(texts, at)
        if read is None and unfinished and _TYPICAL.match(texts[at]):
            unfinished -= 1
            read = _message(texts, at)
        if read is None:
            unfinished += texts[at].endswith(_HEADER)
            at += 1
            continue
        message, end = read
        causes: list[str] = []
        handling: list[str] = []
        while end < len(texts) and texts[end] in (_DIRECT, _DURING) and (outer := _exception(texts, end + 1)):
            if texts[end] == _DIRECT:
                causes = [*message, *causes]
            else:
                causes, handling = [], [*message, *causes, *handling]
            message, end = outer
        found.append(
            PythonError(
                "\n".join(texts[at:end]),
                tuple(message),
                name,
                causes=tuple(causes),
                handling=tuple(handling),
                first=stream[at][0],
                last=stream[end - 1][0],
            )
        )
        at = end
    return found


def _exception(texts: Sequence[str], at: int) -> tuple[list[str], int] | None:
    """The message of the exception whose text begins at `at`, and where the text ends; None if none begins there."""
    text = texts[at] if at < len(texts) else ""
    if _REMOTE.match(text) and (quoted := _exception(texts, at + 2)):
        message, end = quoted
        return message, end + (texts[end : end + 1] == [_QUOTES])
    if _EXCEPTION.match(text) and texts[at + 1 : at + 2] in ([_DIRECT], [_DURING]):  # one that was never raised
        return [text], at + 1
    if _GROUP.match(text):
        end = next((at for at in range(at, len(texts)) if not _GROUP_LINE.match(texts[at])), len(texts))
        parts = [part["message"] for line in texts[at:end] if (part := _IN_GROUP.match(line))]
        return (parts, end) if parts else None
    header = text == _HEADER or (text.endswith(_HEADER) and _BAR.search(text))
    if not header and not _SYNTAX.match(text):
        return None
    position = foreign = at + 1
    while position < len(texts):
        line = texts[position]
        if line.startswith(_INDENT):
            foreign = position + 1
        elif line.endswith(_HEADER):
            return None
        elif (_EXCEPTION if position == foreign else _TYPICAL).match(line):
            return _message(texts, position)
        elif position - foreign >= _MOST_FOREIGN_LINES or not header:
            return None
        position += 1
    return None


def _message(texts: Sequence[str], at: int) -> tuple[list[str], int]:
    """The lines of the message that begins at `at`, without frames that it quotes, and where it ends."""
    message, end = [texts[at]], at + 1
    while end < len(texts):
        line = texts[end]
        if _GROUP.match(line):
            break
        quoted = line == _ORIGINAL or (line == _HEADER and message[-1].startswith("-- Process"))
        if quoted:
            end += 1
            while end < len(texts) and texts[end].startswith(_INDENT):
                end += 1
            message += texts[end : end + 1]
        elif line.startswith(_INDENT) or _CONTINUES.match(line):
            message.append(line.strip())
        elif message[-1].endswith(":") and not (line.endswith(_HEADER) or line in (_DIRECT, _DURING)):
            message.append(line)
        else:
            break
        end += 1
    return message, min(end, len(texts))


def _own_lines(lines: Sequence[StderrLine], inside: Collection[int]) -> list[int]:
    """The numbers of the lines outside exceptions and summaries that the program wrote itself."""
    own, noise = [], False
    for at, (text, _) in enumerate(lines):
        if at in inside:
            noise = True
            continue
        if not text.startswith(_INDENT):  # an indented line belongs to the one before it
            noise = bool(
                _NOISE.match(text) or _AT_SHUTDOWN.match(text) or text.startswith("Traceback (") or _BAR.search(text)
            )
        if not noise and text.strip():
            own.append(at)
    return own


def _preceded_by(pattern: re.Pattern[str], lines: Sequence[StderrLine], error: PythonError) -> bool:
    return error.first > 0 and bool(pattern.match(lines[error.first - 1].text))


def _of_launcher(error: PythonError) -> bool:
    """Whether it is the launcher's own exception about a worker that failed."""
    known = _CHILD_FAILED.match(error.message[0]) or _ENDED_CHILD.match(error.message[0])
    return bool(known and (_LAUNCHER_FILES.search(error.text) or _CHILD_FAILED.match(error.message[0])))


def _summary(lines: Sequence[StderrLine], errors: Iterable[PythonError]) -> tuple[Worker | None, set[int], int]:
    """The worker that failed first according to the launcher, the lines of its summary, and where that ends."""
    end = next((at + 1 for at in reversed(range(len(lines))) if not SLURMS_LINE.match(lines[at].text)), 0)
    start = max((error.first for error in errors if _of_launcher(error)), default=end)
    ruled = max((at + 1 for at in range(start, end) if _RULE.fullmatch(lines[at].text)), default=end)
    for until in dict.fromkeys((end, ruled)):  # whoever started the launcher may have the last word
        if summary := summary_of("\n".join(line.text for line in lines[:until])):
            return summary.first, set(range(start, until)), until
    for at, line in enumerate(lines):
        if found := next(filter(None, (pattern.search(line.text) for pattern in _ONE_LINE)), None):
            numbers = {name: int(value) for name, value in found.groupdict().items() if value}
            code = -numbers["signal"] if "signal" in numbers else numbers["code"]
            return Worker(code, numbers.get("rank")), set(), at + 1
    return None, set(), len(lines)

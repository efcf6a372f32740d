"""What each rank reports about its end: the first of RANK_RULES that applies, in the order of their evidence."""

from __future__ import annotations

import builtins
import re
import sys
from dataclasses import dataclass, replace
from functools import cached_property
from signal import SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGINT, SIGKILL, SIGSEGV, SIGTERM, Signals
from typing import TYPE_CHECKING

from clusterctl.launcher.diagnosis.finding import Evidence
from clusterctl.launcher.diagnosis.last_words import LastWords, last_words, launches
from clusterctl.launcher.diagnosis.signatures import Detail, Level, Signature, most_specific, signature
from clusterctl.shared.errors import Cause, RoleFailed
from clusterctl.shared.node.signals import EXIT_TERMINATED
from clusterctl.shared.record.heartbeats import EXIT_HUNG
from clusterctl.shared.record.marks import EXIT_RESTART

if TYPE_CHECKING:
    from collections.abc import Callable

    from clusterctl.launcher.diagnosis.last_words import PythonError
    from clusterctl.launcher.diagnosis.traces import AttemptTrace, RankTrace
    from clusterctl.launcher.observe.rank_events import Death
    from clusterctl.shared.node.launchers import Worker

CLOCK_SECONDS = 2.0  # how far node clocks may drift apart unnoticed
BY_SIGKILL = "killed by SIGKILL: manually, by the kernel, or by an administrator"
QUOTED = re.compile(r"[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit|Warning|Iteration|Failed)(?::|$)")
_OWN_MISTAKE = re.compile(  # errors that a program raises on its own, never because it lost a peer
    r"(Assertion|Attribute|Import|Index|Key|ModuleNotFound|Name|NotImplemented|Syntax|Type|Value|ZeroDivision)Error\b"
)
_MAYBE_MEMORY = (
    "nothing records who killed it: if its memory was short, ask for more "
    "(resources.memory=SIZE, or sbatch --mem), or start fewer data loader workers"
)
_NEARLY_FULL = 0.9
# Exceptions whose message quotes the program's own values.
QUOTING = re.compile(r"(Assertion|Attribute|Index|Key|Name|NotImplemented|Syntax|Type|Value|ZeroDivision)Error$")
_LIBRARIES = frozenset(
    (
        "torch",
        "torch_geometric",
        "numpy",
        "jax",
        "jaxlib",
        "tensorflow",
        "cupy",
        "requests",
        "urllib3",
        "huggingface_hub",
    )
)
_SYSTEMS = ("OSError", "IOError")  # whose message is the system's
_BY_SYSTEM = re.compile(r"\[Errno -?\d+\]|\berrno\b|os error|(CUDA|HIP) error|cuda failure", re.IGNORECASE)
# slurmstepd's own words, from 20.11 to 26.05, and those of versions that count memory themselves.
_OOM_KILL = re.compile(
    r"(slurmstepd|srun|clusterctl)[\w.-]*: .*(oom[-_ ]kill event|exceeded (job |step )?memory limit|OOM Killed)",
    re.IGNORECASE,
)
_STEP = re.compile(r"\bstep(?:id=| )(?P<job>\d+)", re.IGNORECASE)
# Signals by which a program ends itself: what it wrote last may say more.
_CRASHES = frozenset({SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGSEGV})
_CRASHED = re.compile(
    r"terminate called after|FATAL ERROR: |\s*what\(\):|Fatal Python error|.*Assertion .* failed|\w+\(\): |.*: Aborted"
)
_HOW = {  # srun's words for signals, by strsignal(3)
    "Killed": SIGKILL,
    "Terminated": SIGTERM,
    "Interrupt": SIGINT,
    "Aborted": SIGABRT,
    "Bus error": SIGBUS,
    "Segmentation fault": SIGSEGV,
    "Floating point exception": SIGFPE,
    "Illegal instruction": SIGILL,
}
_BY_CODE = {128 + number: number for number in (SIGKILL, SIGINT, *_CRASHES)}  # of a shell around the program
_PYTHONS = (None, 1)  # the exit code of an exception, unless it is unknown
_NOT_FOUND = (126, 127)  # a shell's, for a program that it cannot start
_NO_LIBRARY = (1, 127)  # the dynamic linker's
_SLURMS_NAME = re.compile(r"(?:slurmstepd|srun)[\w.-]*: (?:error|fatal): ")
COMPLAINT = re.compile(
    r"\b(error|fatal|fail(ed|ure)?|exception|invalid|cannot|could not|not found|no such|denied|unable)\b", re.IGNORECASE
)
_OWN_VERDICT = re.compile(
    r"\[?\d{4}-\d\d|\[?\d\d:\d\d:\d\d|(?:.{0,60}\b)?(?:INFO|WARNING|ERROR|CRITICAL|FATAL)\b"
    r"|(?:\S+: )?(?:error|fatal|failed|failure|abort\w*|giving up|stopp\w*|invalid|cannot|could not)\b"
    r"|(?:epoch|step)\b",
    re.IGNORECASE,
)
# pip's last lines are the same for a package that does not exist and for a node without a network.
_FOUND_NOWHERE = re.compile(r"ERROR: (?:No matching distribution found|Could not find a version) ")
_COULD_NOT_ASK = re.compile(r"after connection broken by")


@dataclass(frozen=True)
class Candidate:
    """What a rank, or srun, reported about its end. `time` is by its node's clock, `order` is srun's."""

    rank: int
    node: str
    signature: Signature
    words: str
    time: float | None = None
    order: int | None = None
    traceback: str = ""
    hint: str = ""
    facts: tuple[str, ...] = ()
    certain: bool = True
    evidence: Evidence = Evidence.NOTHING

    @property
    def primary(self) -> bool:
        return self.signature.level is Level.PRIMARY

    @property
    def may_follow(self) -> bool:
        """Whether its program may have failed because it had lost a peer."""
        return self.signature.cause is Cause.USER and not _OWN_MISTAKE.match(self.words)

    @property
    def precedence(self) -> tuple[int, bool, float, int]:
        """Causes before echoes and survived errors, then by time, then by srun's order (alone without a time)."""
        time = self.time if self.time is not None else float("-inf") if self.order is not None else 1e18
        order = self.order if self.order is not None else 1 << 30
        return self.signature.level, self.evidence is Evidence.ELSEWHERE, time, order

    @property
    def reliable(self) -> bool:
        """Whether it can make a finding certain."""
        return self.certain and self.evidence.may_be_certain


@dataclass(frozen=True)
class RankEnd:
    """All that is recorded about the end of one rank. `blank` has its place and time."""

    rank: RankTrace
    how: str  # srun's words; empty if it reported nothing
    node_out_of_memory: bool
    blank: Candidate
    memory: str = ""  # how full its node's was shortly before, if it was nearly full

    @cached_property
    def words(self) -> LastWords:
        return last_words(self.rank.last_words)

    @property
    def code(self) -> int | None:
        """The exit code; None if unknown or if a signal ended the rank."""
        if self.rank.raised and self.rank.raised.code is not None:
            return self.rank.raised.code if self.rank.raised.signal is None else None
        code = self.how.removeprefix("Exited with exit code ")
        if code != self.how and code.isdecimal():
            return int(code)
        return self.rank.exit_code

    @property
    def signal(self) -> int | None:
        """The signal that ended the rank's program, or the rank."""
        if self.rank.raised and self.rank.raised.signal:
            return self.rank.raised.signal
        by_srun = next((number for phrase, number in _HOW.items() if self.how.startswith(phrase)), None)
        return by_srun or _BY_CODE.get(self.code if self.code is not None else -1)

    def says(self, cause: Cause | Signature, words: str, **changes: object) -> Candidate:
        meaning = cause if isinstance(cause, Signature) else Signature(cause)
        return replace(self.blank, signature=meaning, words=words, **changes)  # type: ignore[arg-type]


def candidates(attempt: AttemptTrace, *, out_of_memory: bool = False) -> list[Candidate]:
    """The most reliable report of each rank, one candidate per rank. `out_of_memory`: by Slurm's accounting."""
    known = {rank.rank: rank for rank in attempt.ranks}
    died = {death.rank: death for death in reversed(attempt.deaths) if attempt.whole or death.rank in known}
    ranks = {rank: attempt.rank(rank) for rank in died} | known
    killed_on = {rank.node for rank in attempt.ranks if any(_is_oom_kill(line, attempt) for line in rank.last_words)}
    on_request = {EXIT_TERMINATED: True, EXIT_HUNG: attempt.alarm is not None, EXIT_RESTART: attempt.asked}
    earliest = (attempt.start or 0.0) - CLOCK_SECONDS
    latest = (attempt.end or float("inf")) + CLOCK_SECONDS
    found = []
    for number, rank in sorted(ranks.items()):
        # With these codes it did not fail on its own, even if srun reports its step as failed. A program that raised
        # one may have its own meaning for it.
        if rank.exit_code == 0 or (on_request.get(rank.exit_code or 0) and not rank.raised):
            continue
        used, limit = attempt.memory.get(rank.node) or (0.0, 1.0)
        memory = f"{used / 2**30:.1f} of {limit / 2**30:.1f} GiB" if used >= _NEARLY_FULL * limit else ""
        if candidate := _candidate(rank, died.get(number), killed_on, memory, out_of_memory=out_of_memory):
            # A time before the batch script started or after it ended is from a wrong clock.
            in_time = candidate.time is not None and earliest <= candidate.time <= latest
            found.append(candidate if in_time else replace(candidate, time=None))
    return found


def _candidate(
    rank: RankTrace, death: Death | None, killed_on: set[str], memory: str, *, out_of_memory: bool
) -> Candidate | None:
    """Why `rank` failed, by the first of RANK_RULES that applies."""
    blank = Candidate(
        rank=rank.rank,
        node=rank.node or (death.node if death else ""),
        signature=Signature(Cause.USER),
        words="",
        time=rank.raised.time if rank.raised else rank.beat.time if rank.beat else rank.ended,
        order=death.order if death else None,
        hint=rank.raised.hint if rank.raised else "",
    )
    how = death.how if death else ""
    # srun reports this for every task that ends on a node where the kernel killed any process of the step.
    on_its_node = rank.node in killed_on or "out of memory" in how.lower()
    end = RankEnd(rank, how, on_its_node or out_of_memory, blank, memory)
    evidence, found = _of_several(end) or _by_rule(end)
    if found and on_its_node and found.signature.cause in (Cause.USER, Cause.KILLED):
        words = f"failed on a node where the kernel killed a process for lack of memory: {found.words}"
        found = replace(found, signature=Signature(Cause.HOST_MEMORY), words=words, certain=False)
    return found and replace(found, evidence=evidence)


def _by_rule(end: RankEnd) -> tuple[Evidence, Candidate | None]:
    read = ((evidence, rule(end)) for evidence, rule in RANK_RULES)
    return next(((evidence, found) for evidence, found in read if found), (Evidence.NOTHING, None))


def _of_several(end: RankEnd) -> tuple[Evidence, Candidate] | None:
    """Of launchers on several nodes that wrote to one file, the first that reports a cause; None without such."""
    several = launches(end.rank.last_words) if end.rank.is_mixed else []
    if len(several) < 2 and not (several and len(several[0]) < len(end.rank.last_words)):
        return None
    ends = (replace(end, how="", rank=replace(end.rank, last_words=lines)) for lines in several)
    read = [(evidence, found) for evidence, found in map(_by_rule, ends) if found and found.primary]
    causes = [one for one in read if one[1].signature.cause is not Cause.KILLED or "SIGTERM" not in one[1].words]
    if not causes:
        return None
    evidence, found = causes[0]
    alone = len({other.words for _, other in causes}) == 1 and bool(end.words.worker) and not end.words.concluded
    return evidence, replace(found, certain=found.certain and alone)


def _is_oom_kill(line: str, attempt: AttemptTrace) -> bool:
    """Whether Slurm reports that the kernel killed a process of this job; a program may print the log of another."""
    step = _STEP.search(line)
    ours = step is None or not attempt.job_id or step["job"] == attempt.job_id
    return ours and _OOM_KILL.match(line) is not None


def _exception(end: RankEnd, error: PythonError) -> Candidate:
    """What an exception means: the most specific line of its whole message, else of those that it was raised from."""
    if error.type == "KeyboardInterrupt":
        return end.says(Cause.KILLED, _interrupted("it"), traceback=error.text)
    if error.parts:  # a group: the first of its parts that is a cause
        read = [_exception(end, replace(error, message=(part,), causes=(), handling=())) for part in error.parts]
        found = min(read, key=lambda one: one.signature.level)
        alike = len({one.signature.cause for one in read}) == 1
        return replace(found, words=_headline(error), certain=alike and all(one.certain for one in read))
    first, quotes = error.message[0], bool(QUOTING.match(error.type))
    own_class = _is_own_class(error)
    own_words = own_class and not any(map(_BY_SYSTEM.search, error.message))
    message = error.message[:1] if own_words else error.message
    if not quotes and most_specific(message):
        lines = (*message, *error.causes)
        meanings = [(meaning, line) for line in lines if (meaning := signature(line))]
        meaning, line = min(meanings, key=lambda one: (one[0].level, one[0].detail))
        words = first if line == first else f"{error.type}: {line}"
        proven = meaning.cause not in (Cause.DISK, Cause.NODE) or error.type in _SYSTEMS or _BY_SYSTEM.search(line)
        certain = bool(proven) and not (own_class and line != first)
        vague = end.says(meaning, words, traceback=error.text, certain=certain)
        if vague.signature.detail is Detail.REASON:
            return vague
        known = most_specific(end.words.telling)  # the reason may be printed elsewhere on stderr
        if known is None or (known.level, known.detail) >= (vague.signature.level, vague.signature.detail):
            return replace(vague, certain=False)
        return replace(vague, signature=known, words=f"{vague.words}: {known.words}", certain=False)
    words, certain = _headline(error), not ((quotes or own_class) and most_specific(error.message))
    known = most_specific(error.causes)
    if known is None and not _OWN_MISTAKE.match(first) and (known := most_specific(error.handling)):
        certain = False  # raised while handling another one, which may be the reason or not
    if known:
        words = f"{words}, because of {known.words}"
    return end.says(known or Cause.USER, words, traceback=error.text, certain=certain)


def _is_own_class(error: PythonError) -> bool:
    """Whether the program defined the exception's class: the further lines of its message are in its own words."""
    module = error.message[0].partition(":")[0].rpartition(".")[0].partition(".")[0]
    if module in _LIBRARIES or module in sys.stdlib_module_names or (not module and hasattr(builtins, error.type)):
        return False
    frames = [line for line in error.text.splitlines() if line.lstrip().startswith('File "')]
    return not frames or "-packages/" not in frames[-1]


def _headline(error: PythonError) -> str:
    """The message on one line: its first line, and the next one where the first only introduces it."""
    first, *more = error.message
    if not more:
        return first
    if error.is_group:
        return f"{first}: {'; '.join(more[:3])}"
    quoted = next((line for line in reversed(more) if QUOTED.match(line)), "")
    if quoted or first.endswith(":"):
        others = len(more) - 1
        return f"{first.rstrip('.:')}: {quoted or more[0]}" + (f" (and {others} more)" if others and not quoted else "")
    return first


# Recorded facts


def _out_of_memory(end: RankEnd) -> Candidate | None:
    """Slurm's word that the kernel killed it for its memory."""
    by_kernel = end.signal == SIGKILL or (end.rank.is_silent and bool(end.how))
    if not end.node_out_of_memory or not by_kernel:
        return None
    return end.says(Cause.HOST_MEMORY, "exceeded the job's memory on its node and was killed by the kernel")


def _task_exception(end: RankEnd) -> Candidate | None:
    """The exception that the task itself recorded."""
    raised = end.rank.raised
    if raised is None or raised.code is not None:
        return None
    if raised.type == "KeyboardInterrupt":
        return end.says(Cause.KILLED, _interrupted("it"), traceback=raised.traceback)
    if raised.cause is not None:
        # The message of a role quotes what its `ready` showed, which is not the cause.
        known = None if raised.type == RoleFailed.__name__ else signature(f"{raised.type}: {raised.message}")
        level = Level.NETWORK if raised.cause is Cause.NETWORK else Level.PRIMARY
        first_line = "".join(raised.message.strip().splitlines()[:1])
        return end.says(known or Signature(raised.cause, level), first_line or raised.type)
    recorded = last_words(tuple(raised.traceback.splitlines())).errors
    if recorded:
        return replace(_exception(end, recorded[-1]), traceback=raised.traceback)
    name = (f"{raised.type}: {raised.message}" if raised.message else raised.type) or "exception"
    return end.says(signature(name) or Cause.USER, name.splitlines()[0], traceback=raised.traceback)


def _killed(end: RankEnd) -> Candidate | None:
    """A signal that ended a worker, according to torchrun, accelerate and the like, else the rank or its program."""
    worker = end.words.worker
    if worker and worker.exit_code < 0:
        name = "its program" if worker.rank is None else f"the worker with rank {worker.rank}"
        found = _ended_by(end, -worker.exit_code, name)
        return replace(
            found, certain=found.certain and not end.words.concluded, facts=(*_process(worker), *found.facts)
        )
    if end.signal is not None:
        return _ended_by(end, end.signal, "its program" if end.rank.raised else "")
    if end.how and not end.how.startswith(("Exited with exit code", "Out Of Memory")):
        return end.says(Cause.KILLED, f"was killed: {end.how}")
    return None


def _process(worker: Worker) -> tuple[str, ...]:
    """Which process of a launcher failed, if the launcher tells."""
    if worker.pid is None:
        return ()
    where = f" on {worker.host}" if worker.host else ""
    local = "" if worker.local_rank is None else f", with local rank {worker.local_rank}"
    return (f"that worker was process {worker.pid}{where}{local}",)


def _ended_by(end: RankEnd, number: int, what: str) -> Candidate:
    subject = f"{what} was" if what else "was"
    if number == SIGKILL:
        facts = (f"the job's memory on its node, shortly before: {end.memory}",) if end.memory else ()
        return end.says(Cause.KILLED, f"{subject} {BY_SIGKILL}", hint=end.blank.hint or _MAYBE_MEMORY, facts=facts)
    if number == SIGINT:
        return end.says(Cause.KILLED, _interrupted(what or "it"))
    name = next((known.name for known in Signals if known == number), f"signal {number}")
    if number not in _CRASHES:
        return end.says(Cause.KILLED, f"{subject} killed by {name}, and nothing records who sent it")
    crash = [line.strip() for line in end.words.own if _CRASHED.match(line)]
    known = most_specific(crash)
    raised = end.rank.raised
    words = raised.message if raised else f"{subject} killed: {end.how or name}"
    return end.says(known or Cause.KILLED, f"{words}: {crash[-1]}" if crash else words)


def _interrupted(what: str) -> str:
    return f"{what} was interrupted by SIGINT: by scancel --signal=INT, kill, or Ctrl-C"


# Last words


def _before_it_began(end: RankEnd) -> Candidate | None:
    """What srun, a plugin, a container or a shell wrote instead of starting the task."""
    if end.rank.began or not (known := most_specific(end.words.lines)):
        return None
    errors = end.words.errors
    problem = _SLURMS_NAME.sub("", known.words)  # the same on every node
    ours = any(line.startswith("clusterctl[") and line.endswith(problem) for line in end.words.lines)
    hints = [line.removeprefix("hint: ") for line in end.words.lines if ours and line.startswith("hint: ")]
    return end.says(known, problem, traceback=errors[-1].text if errors else "", hint="; ".join(hints))


def _failed_worker(end: RankEnd) -> Candidate | None:
    """The exception of the worker that failed first, according to its launcher."""
    worker, error = end.words.worker, end.words.of_worker
    if worker is None:
        return None
    if error is None and worker.rank is None and end.words.errors:
        error = end.words.errors[-1]  # the launcher's only child
    place = () if worker.rank is None else (f"in the worker with rank {worker.rank} of its launcher", *_process(worker))
    if error:
        found = _exception(end, error)
        recorded = error is end.words.recorded
        ended = (recorded and not end.words.concluded) or (error.ends and worker.exit_code == 1)
        return replace(found, certain=found.certain and ended, facts=(*place, *found.facts))
    # Nothing says which of the exceptions was that worker's: take the best.
    usual = worker.exit_code == 1
    read = [_exception(end, one) for one in end.words.errors if usual or not one.after]
    if best := min(read, key=lambda one: one.signature.level, default=None):
        alike = len({one.words for one in read}) == 1
        return replace(best, certain=best.certain and alike and usual, facts=(*place, *best.facts))
    return None


def _exception_at_the_end(end: RankEnd) -> Candidate | None:
    """The last exception on stderr, if nothing of the program follows it, or nothing but what may belong to it.

    Of several processes with one stderr, the first that failed on its own.
    """
    if end.words.worker or (end.rank.is_silent and end.rank.began and not end.how):
        return None  # its task would have recorded an exception of its program: it was killed itself
    # Python exits with 1 after an exception. With another code, the program went on: its last line says why it ended.
    usual = end.code in _PYTHONS
    errors = [
        error
        for error in end.words.final
        if not error.after or (usual and error.may_go_on and not any(map(_OWN_VERDICT.match, error.after)))
    ]
    errors = [error for error in errors if usual or not error.survived]
    read = []
    for error in sorted(errors, key=lambda error: error.logged):
        found = _exception(end, error)
        read.append(replace(found, certain=found.certain and error.ends and end.code == 1))
    best = min(read, key=lambda candidate: candidate.signature.level, default=None)
    if best and end.rank.is_mixed:
        # Processes without a prefix look like one: the exception of the first to fail may be any of them.
        others = [_exception(end, error) for error in end.words.errors if not (error.survived or error.logged)]
        first = min(others, key=lambda candidate: candidate.signature.level, default=best)
        alike = all(other.words == best.words for other in others if other.primary)
        best = replace(best if best.primary else first, certain=best.certain and best.primary and alike)
    return best


def _killed_child(end: RankEnd) -> Candidate | None:
    """A child that a signal ended, as the shell or the tool that started it says, before it ended itself."""
    line = end.words.ended_child
    if not line or not end.rank.began or not end.code or end.code == EXIT_TERMINATED:
        return None
    return end.says(Cause.KILLED, f"a process of its program was killed: {line}", certain=False, hint=_MAYBE_MEMORY)


def _own_last_line(end: RankEnd) -> Candidate | None:
    """The program's last line that may be a reason, beside its exit code."""
    line, code, known = end.words.last, end.code, signature(end.words.last)
    if not line or code == EXIT_TERMINATED or (code is None and not end.rank.may_go_on):
        return None
    if (end.rank.is_mixed or code is None) and not (known or COMPLAINT.search(line)):
        return None  # it may be about its progress
    raised = end.rank.raised
    begin = "" if code is None else (raised.message if raised else f"exited with {code}") + ": "
    if known and (known.level is not Level.PRIMARY or known.detail is not Detail.REASON):
        # A tool may report the reason first, and then what it led to: the lines with the same name in front.
        name = line.partition(": ")[0]
        known = most_specific((line, *(text for text in end.words.own if text.startswith(f"{name}: "))))
    elif known is None and _FOUND_NOWHERE.match(line):
        known = most_specific(text for text in end.words.own if _COULD_NOT_ASK.search(text))
    if known and known.cause is Cause.LAUNCH and "not found" in line and code not in _NOT_FOUND and end.rank.began:
        known = None  # a shell that ends because of it has that exit code
    if known:
        conclusive = (known.cause is Cause.LAUNCH and code in _NOT_FOUND) or (known.software and code in _NO_LIBRARY)
        return end.says(known, known.words or line, certain=conclusive)
    if not end.rank.began:
        return end.says(Cause.LAUNCH, f"could not be started: exit code {code}: {line}", certain=False)
    errors = [error.message[0] for error in end.words.errors]
    phrases = [text.strip() for text in end.words.own if text.strip() != line and signature(text)]
    earlier = [*errors, *phrases, *end.words.ended_children]  # which it may have survived
    facts = tuple(f"earlier on its stderr: {text}" for text in earlier[:2])
    meanings = filter(None, map(signature, earlier))
    lost_a_peer = any(meaning.level is Level.ECHO for meaning in meanings)  # which may be why it stopped
    level = Level.ECHO if lost_a_peer else Level.PRIMARY
    certain = not (earlier or end.rank.is_mixed or end.rank.may_go_on)
    return end.says(Signature(Cause.USER, level), f"{begin}{line}", certain=certain, facts=facts)


# Elsewhere, and nothing


def _known_phrase(end: RankEnd) -> Candidate | None:
    """An exception that the program may have survived, or any known phrase."""
    if end.code == EXIT_TERMINATED:
        return None
    if end.rank.is_mixed and end.code not in _PYTHONS:
        return None  # the program chose its exit code, and its last line may be mere progress
    if errors := [error for error in end.words.errors if not error.survived]:
        return _exception(end, errors[-1])
    known = most_specific(end.words.telling)
    return known and end.says(known, known.words)


def _printed(end: RankEnd) -> Candidate | None:
    """An error at the end of stdout, where stderr gives no reason."""
    printed = last_words(end.rank.printed)
    if not end.rank.began or not (code := _exit_code(end)):
        return None
    if printed.errors and not printed.errors[-1].after:
        return _exception(end, printed.errors[-1])
    known = signature(printed.last)
    if not known and not COMPLAINT.search(printed.last):
        return None
    return replace(code, signature=known or code.signature, words=f"{code.words}: {printed.last}")


def _exit_code(end: RankEnd) -> Candidate | None:
    code = end.code
    if code is None or code == EXIT_TERMINATED:
        return None
    raised = end.rank.raised
    if not end.rank.began and end.words.cancelled:
        return end.says(Signature(Cause.LAUNCH, Level.ECHO), "cancelled before it had started")
    if not end.rank.began:
        return end.says(Cause.LAUNCH, f"could not be started: exit code {code}")
    cause = (raised.cause if raised else None) or Cause.USER
    alone = not (
        end.words.errors or end.words.ended_children or (end.rank.is_mixed and most_specific(end.words.telling))
    )
    return end.says(cause, raised.message if raised else f"exited with {code}", certain=alone)


RANK_RULES: tuple[tuple[Evidence, Callable[[RankEnd], Candidate | None]], ...] = (
    (Evidence.RECORDED, _out_of_memory),
    (Evidence.RECORDED, _task_exception),
    (Evidence.RECORDED, _killed),
    (Evidence.LAST_WORDS, _before_it_began),
    (Evidence.LAST_WORDS, _failed_worker),
    (Evidence.LAST_WORDS, _exception_at_the_end),
    (Evidence.LAST_WORDS, _killed_child),
    (Evidence.LAST_WORDS, _own_last_line),
    (Evidence.ELSEWHERE, _known_phrase),
    (Evidence.ELSEWHERE, _printed),
    (Evidence.RECORDED, _exit_code),
)

"""Decides which roles of a job start, start again and end, from what their ranks report. Rank 0 runs it for all.

The ranks send (engine/task/roles.py)

    joined   host, port, meeting: where its program can be reached
    ready    its program has started, and its `ready` has been seen
    waiting  answer: what its `ready` shows instead
    ended    code; why: its program has ended, in words; asked: it asks for a restart of the run
    left     it has ended its program because of `end`, and is about to exit

and receive

    start    addresses: [host, port, meeting] of each role's ranks
    again    number: start the program again
    end      how: "finished", "failed" or "restart"; rank: the one that failed, or null; why: in words
    over     exit now

Pure: the time is an argument, and what is to be sent is returned.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from clusterctl.shared.record.roles import Address, Seating, StoredShape, seating

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from clusterctl.shared.record.fields import Fields

LONGEST_SECONDS = 4.0  # after the last grace period, until everything is over
MEETING_SECONDS = 300.0  # the slowest rank may still be unpacking its image
_DOUBT_SECONDS = 2.5  # a program that was ended by TERM is reported a second later
_LASTING_SECONDS = 60.0  # a program without `ready` that ran this long had started


class How(StrEnum):
    FINISHED = "finished"
    FAILED = "failed"
    RESTART = "restart"  # of the run, which one of its programs has requested


class Part(NamedTuple):
    """What is done with a role; the keys of `[[role]]`."""

    program: tuple[str, ...]
    needs: tuple[str, ...]
    ready: str
    ready_within: float
    ends_job: bool
    restart: str
    grace: float
    env: Mapping[str, str]
    gpus: int  # on each node

    @classmethod
    def of(cls, table: Fields) -> Part:
        return cls(
            table.texts("program"),
            table.texts("needs"),
            table.text("ready"),
            table.whole("ready_within") or 1,
            table.text("ends") == "job",
            table.text("restart"),
            table.whole("grace") or 0,
            table.table("env").named_texts(),
            table.whole("gpus_per_node") or 0,
        )

    @property
    def serves(self) -> bool:
        """Whether others can use it only as long as it runs."""
        return self.ready.startswith(("http:", "tcp:"))


class Roles(NamedTuple):
    """The roles of a job as its record has them."""

    parts: Mapping[str, Part]
    seating: Seating
    limit: int  # of starts of one program again
    fruitless: int  # in a row, without becoming ready

    @property
    def leading(self) -> str:
        """The role whose metrics are the run's: the first that ends the job, or the last one."""
        return next((name for name, part in self.parts.items() if part.ends_job), [*self.parts][-1])

    @classmethod
    def of(cls, job: Fields) -> Roles | None:
        """None for a job with a single program."""
        tables = {name: job.table("role").table(name) for name in job.table("role").content}
        if not tables:
            return None
        seated = seating({name: StoredShape.of(table) for name, table in tables.items()})
        restart = job.table("restart")
        limit, fruitless = restart.whole("limit") or 0, restart.whole("without_progress") or 0
        return cls({name: Part.of(table) for name, table in tables.items()}, seated, limit, fruitless)


Message = dict[str, Any]
Sent = list[tuple[int, Message]]


@dataclass
class _Rank:
    address: Address | None = None
    started: float | None = None  # its program, for the last time
    ready: bool = False
    answer: str = ""
    code: int | None = None  # of its program, which has ended for good
    restarts: int = 0
    fruitless: int = 0
    left: bool = False


@dataclass
class Director:
    """See above. `ranks` are all ranks of the job, also those without a role."""

    roles: Roles
    ranks: Iterable[int]
    end: Message | None = None
    over: bool = False
    _all: dict[int, _Rank] = field(init=False)
    _started: set[str] = field(default_factory=set)
    _since: float | None = None  # the first call of `tick`
    _deadline: float = 0.0
    # A rank that has failed, perhaps because one that its role needs has ended just before: when it counts, and why.
    _doubt: tuple[float, int, str] | None = None

    def __post_init__(self) -> None:
        self._all = {rank: _Rank() for rank in self.ranks}

    def hear(self, rank: int, message: Fields, now: float) -> Sent:
        """What to send after a message of `rank`."""
        one = self._all[rank]
        match message.text("kind"):
            case "joined":
                port, meeting = message.whole("port") or 0, message.whole("meeting") or 0
                one.address = Address(message.text("host"), port, meeting)
            case "ready":
                one.ready, one.fruitless = True, 0
            case "waiting":
                one.answer = message.text("answer")
            case "ended" if self.end is None:
                return self._ended(rank, message, now) + self._start(now)
            case "left":
                one.left = True
        return self._start(now) + self._finish(now)

    def lost(self, rank: int, now: float) -> Sent:
        """The connection of `rank` has ended: its process was killed, or it has left."""
        one = self._all[rank]
        already, one.left = one.left, True
        if self.end is None and not already:
            return self._close(How.FAILED, rank, "its task was killed, or the connection to it was lost", now)
        return self._finish(now)

    def tick(self, now: float) -> Sent:
        """What to send because time has passed."""
        self._since = now if self._since is None else self._since
        absent = next((rank for rank, one in self._all.items() if one.address is None), None)
        if self.end is None and absent is not None and now - self._since > MEETING_SECONDS:
            words = f"{self.roles.seating.label(absent)} did not connect to it within {MEETING_SECONDS:g} s"
            return self._close(How.FAILED, 0, words, now)
        if self.end is None and self._doubt is not None and now >= self._doubt[0]:
            return self._close(How.FAILED, *self._doubt[1:], now)
        if self.end is None:
            for name in self._started:
                part = self.roles.parts[name]
                for rank in self.roles.seating.ranks_of(name):
                    one = self._all[rank]
                    waits = part.ready and not one.ready and one.code is None and one.started is not None
                    if waits and one.started is not None and now - one.started > part.ready_within:
                        words = f"was not ready within {part.ready_within:g} s: {one.answer or part.ready}"
                        return self._close(How.FAILED, rank, words, now)
        return self._finish(now)

    def _start(self, now: float) -> Sent:
        """Start the roles whose needed ones are ready; none before all ranks are there."""
        if self.end is not None or not all(one.address for one in self._all.values()):
            return []
        seated, sent = self.roles.seating, Sent()
        for name, part in self.roles.parts.items():
            if name in self._started or not all(self._is_ready(other) for other in part.needs):
                continue
            self._started.add(name)
            addresses = {
                other: [list(self._all[rank].address or ()) for rank in seated.ranks_of(other)]
                for other in self.roles.parts
            }
            for rank in seated.ranks_of(name):
                self._all[rank].started = now
                sent.append((rank, {"kind": "start", "addresses": addresses}))
        return sent

    def _is_ready(self, name: str) -> bool:
        if not self.roles.parts[name].ready:
            return name in self._started
        return all(self._all[rank].ready for rank in self.roles.seating.ranks_of(name))

    def _ended(self, rank: int, message: Fields, now: float) -> Sent:
        one, seat = self._all[rank], self.roles.seating.seats[rank]
        part, code = self.roles.parts[seat.role], message.whole("code") or 0
        why = message.text("why")
        if message.flag("asked"):
            return self._close(How.RESTART, rank, "asked for a restart", now)
        if code == 0 and part.ready and (part.serves or not one.ready) and (users := self._users_of(seat.role)):
            need = f"{' and '.join(users)} {'need' if len(users) > 1 else 'needs'} it"
            code, why = 1, f"exited with 0 {'while' if one.ready else 'before it was ready, and'} {need}"
        if code != 0:
            lasted = not part.ready and one.started is not None and now - one.started >= _LASTING_SECONDS
            one.fruitless = 1 if one.ready or lasted else one.fruitless + 1
            if part.restart == "role" and one.restarts < self.roles.limit and one.fruitless <= self.roles.fruitless:
                one.restarts += 1
                one.started, one.ready = now, False
                return [(rank, {"kind": "again", "number": one.restarts, "why": why})]
            if part.needs:
                self._doubt = self._doubt or (now + _DOUBT_SECONDS, rank, why)
                return []
            return self._close(How.FAILED, rank, why, now)
        one.code = 0
        of_role = self.roles.seating.ranks_of(seat.role)
        if part.ends_job and all(self._all[other].code == 0 for other in of_role):
            return self._close(How.FINISHED, None, f"{seat.role} has finished", now)
        if all(self._all[other].code == 0 for other in self.roles.seating.seats):
            return self._close(How.FINISHED, None, "all roles have finished", now)
        return []

    def _users_of(self, name: str) -> list[str]:
        """The roles that need `name` and have not finished."""
        return [
            other
            for other, part in self.roles.parts.items()
            if name in part.needs and any(self._all[rank].code is None for rank in self.roles.seating.ranks_of(other))
        ]

    def _close(self, how: How, rank: int | None, why: str, now: float) -> Sent:
        self.end = {"kind": "end", "how": how.value, "rank": rank, "why": why}
        self._deadline = now + max(part.grace for part in self.roles.parts.values()) + LONGEST_SECONDS
        return [(one, self.end) for one, state in self._all.items() if not state.left] + self._finish(now)

    def _finish(self, now: float) -> Sent:
        """Let all exit at once when all have ended their programs, or when the last grace period is over."""
        if self.end is None or self.over:
            return []
        if not all(one.left for one in self._all.values()) and now < self._deadline:
            return []
        self.over = True
        return [(rank, {"kind": "over"}) for rank in self._all]


def addresses_in(message: Fields) -> dict[str, list[Address]]:
    """The addresses in a `start`."""
    found: dict[str, list[Address]] = defaultdict(list)
    for role, ranks in message.table("addresses").content.items():
        for host, port, meeting in ranks:
            found[role].append(Address(str(host), int(port), int(meeting)))
    return dict(found)

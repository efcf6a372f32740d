"""What connects the ranks of a job with several roles: each rank to rank 0, which decides (shared/node/role_plan.py).

A connection carries one JSON object per line, preceded by a tag that only a process with the attempt's secret can
create: it covers both ends' nonces, the direction and the number of the message, so that none can be forged, repeated
or left out. A process that does not know the secret is disconnected. Standard library only.
"""

from __future__ import annotations

import hmac
import json
import os
import re
import selectors
import socket
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from clusterctl.engine.task import meeting
from clusterctl.shared.errors import Cause, TaskError, reason
from clusterctl.shared.node.role_plan import Director, How, addresses_in
from clusterctl.shared.record import secret
from clusterctl.shared.record.fields import Fields
from clusterctl.shared.record.files import exists, parse_record, read_regular

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from clusterctl.shared.node.role_plan import Roles, Sent
    from clusterctl.shared.record.layout import Attempt
    from clusterctl.shared.record.place import Place
    from clusterctl.shared.record.roles import Address

_LONGEST_LINE = 1 << 22
_MOST_STRANGERS = 64
_HEAD_BYTES = 36  # the nonce and the rank of a connection's other end
_TICK_SECONDS = 0.5
_LAST_SECONDS = 2.0  # for messages on their way when all is over
_PROBE_SECONDS = 2.0
_MOST_SEARCHED = 1 << 24  # bytes of a log at a time
_TAG = re.compile(rb"[0-9a-f]{64} ")


class Channel:
    """One authenticated end of a connection, once `greet` and `welcome` have exchanged the nonces."""

    def __init__(self, connection: socket.socket, own_secret: bytes, own: str, other: str, nonces: bytes) -> None:
        self.connection = connection
        self._secret, self._own, self._other, self._nonces = own_secret, own, other, nonces
        self._sent = self._received = 0
        self._torn = b""
        self._lock = threading.Lock()

    def send(self, message: Mapping[str, Any]) -> None:
        """Raises OSError."""
        body = json.dumps(message).encode()
        with self._lock:
            tag = secret.sign(self._secret, f"roles {self._own} {self._sent}", self._nonces + body)
            self._sent += 1
            self.connection.sendall(tag.encode() + b" " + body + b"\n")

    def receive(self) -> list[Fields]:
        """The messages that have arrived; waits for some. Raises OSError at the end, and for anything not authentic."""
        return self.messages_in(_read(self.connection))

    def messages_in(self, block: bytes) -> list[Fields]:
        """The messages that end in the next bytes from the other end. Raises OSError for anything not authentic."""
        *lines, self._torn = (self._torn + block).split(b"\n")
        if len(self._torn) > _LONGEST_LINE:
            raise ConnectionAbortedError("line too long")
        messages = []
        for line in lines:
            tag, body = line[:64], line[65:]
            known = secret.sign(self._secret, f"roles {self._other} {self._received}", self._nonces + body).encode()
            if not _TAG.match(line) or not hmac.compare_digest(tag, known):
                raise ConnectionAbortedError("not from this attempt")
            self._received += 1
            messages.append(Fields(parse_record(body) or {}))
        return messages


@dataclass
class _Guest:
    """A connection before its first message has been checked."""

    connection: socket.socket
    nonce: bytes
    until: float
    content: bytes = b""


class Stage:
    """Rank 0's side: accepts the ranks, and sends them what the director decides."""

    def __init__(self, roles: Roles, ranks: int, attempt: Attempt, host: str) -> None:
        self._secret = secret.read(attempt)
        self._director, self._ranks = Director(roles, range(ranks)), ranks
        self._listener = socket.create_server((host, 0), backlog=min(4096, 2 * ranks))
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._channels: dict[int, Channel] = {}
        self._guests: list[_Guest] = []
        self.address: tuple[str, int] = self._listener.getsockname()
        threading.Thread(target=self._serve, name="roles", daemon=True).start()

    def _serve(self) -> None:
        leave_at = None
        try:
            while leave_at is None or time.monotonic() < leave_at:
                for key, _ in self._selector.select(_TICK_SECONDS):
                    if key.fileobj is self._listener:
                        self._accept()
                    elif isinstance(key.data, _Guest):
                        self._welcome(key.data)
                    else:
                        self._hear(key.data)
                for guest in [guest for guest in self._guests if time.monotonic() > guest.until]:
                    self._turn_away(guest)
                self._send(self._director.tick(time.monotonic()))
                if self._director.over and leave_at is None:
                    leave_at = time.monotonic() + (_LAST_SECONDS if len(self._selector.get_map()) > 1 else 0)
        finally:  # whatever has happened, the ranks must see that nobody coordinates them any more
            self._selector.close()
            self._listener.close()
            for channel in self._channels.values():
                channel.connection.close()

    def _accept(self) -> None:
        """Greet a connection, without waiting for its answer: strangers must not hold up the ranks."""
        connection, _ = self._listener.accept()
        connection.settimeout(_PROBE_SECONDS)
        guest = _Guest(connection, os.urandom(32), time.monotonic() + _PROBE_SECONDS)
        self._guests.append(guest)
        self._selector.register(connection, selectors.EVENT_READ, guest)
        if len(self._guests) > self._ranks + _MOST_STRANGERS:
            self._turn_away(self._guests[0])
        try:
            connection.sendall(guest.nonce)
        except OSError:
            self._turn_away(guest)

    def _turn_away(self, guest: _Guest) -> None:
        if guest in self._guests:
            self._guests.remove(guest)
            self._selector.unregister(guest.connection)
            guest.connection.close()

    def _welcome(self, guest: _Guest) -> None:
        """Take in what a guest has sent; once that is the first message of a rank, it is a rank."""
        try:
            guest.content += _read(guest.connection)
            if len(guest.content) < _HEAD_BYTES:
                return
            rank = int.from_bytes(guest.content[_HEAD_BYTES - 4 : _HEAD_BYTES], "big")
            nonces = guest.nonce + guest.content[: _HEAD_BYTES - 4]
            channel = Channel(guest.connection, self._secret, f"to {rank}", f"from {rank}", nonces)
            messages = channel.messages_in(guest.content[_HEAD_BYTES:])
            if not messages:
                return
            if not 0 <= rank < self._ranks or rank in self._channels or messages[0].text("kind") != "joined":
                raise ConnectionAbortedError("no rank of this run, or here already")
        except OSError:
            self._turn_away(guest)
            return
        self._guests.remove(guest)
        self._selector.modify(guest.connection, selectors.EVENT_READ, rank)
        self._channels[rank] = channel
        self._send([(rank, {"kind": "welcome"})])
        for message in messages:
            self._send(self._director.hear(rank, message, time.monotonic()))

    def _hear(self, rank: int) -> None:
        try:
            for message in self._channels[rank].receive():
                self._send(self._director.hear(rank, message, time.monotonic()))
        except OSError:
            self._selector.unregister(self._channels[rank].connection)
            self._channels[rank].connection.close()
            self._send(self._director.lost(rank, time.monotonic()))

    def _send(self, messages: Sent) -> None:
        for rank, message in messages:
            if channel := self._channels.get(rank):
                with suppress(OSError):  # it is gone, which its connection shows
                    channel.send(message)


class Actor:
    """The side of every rank: `join` first, then `wait_for_start`, and `ended` each time its program has ended."""

    def __init__(self, roles: Roles, place: Place, attempt: Attempt, own: Address) -> None:
        self._roles, self._place = roles, place
        self.addresses: dict[str, list[Address]] = {}
        self.end: Fields | None = None
        self.was_ready = False
        self.on_end: Callable[[], None] = lambda: None  # called once, in a thread
        self._changed = threading.Condition()
        self._started = self._over = False
        self._again: Fields | None = None
        if place.rank == 0:
            self._stage = Stage(roles, place.world_size, attempt, own.host)
            meeting.publish(attempt, *self._stage.address)
        self._channel = _connected(attempt, place.rank)
        self._channel.send({"kind": "joined", **own._asdict()})
        try:
            welcome, *more = self._channel.receive()
            if welcome.text("kind") != "welcome":
                raise ValueError("an unexpected answer")
        except (OSError, ValueError) as error:
            raise _no_coordinator(reason(error)) from error
        self._channel.connection.settimeout(None)
        for message in more:
            self._take(message)
        threading.Thread(target=self._listen, name="actor", daemon=True).start()

    def wait_for_start(self) -> bool:
        """Wait until this rank's program may start; false if the job ends before."""
        with self._changed:
            self._changed.wait_for(lambda: self._started or self.end is not None)
            return self._started and self.end is None

    def wait_for_end(self) -> Fields:
        """Wait until the job ends."""
        with self._changed:
            self._changed.wait_for(lambda: self.end is not None)
            assert self.end is not None
            return self.end

    def ended(self, code: int, why: str, *, asked: bool) -> Fields | None:
        """Report that the program has ended; returns the order to start it again, or None when the job ends."""
        with self._changed:
            self._again = None
            self._post({"kind": "ended", "code": code, "why": why, "asked": asked})
            self._changed.wait_for(lambda: self._again is not None or self.end is not None)
            return None if self.end is not None else self._again

    def leave(self) -> None:
        """Report that the program has ended because of the job's end, and wait until all have."""
        self._post({"kind": "left"})
        longest = max(part.grace for part in self._roles.parts.values()) + 2 * _LAST_SECONDS
        with self._changed:
            self._changed.wait_for(lambda: self._over, longest)

    @property
    def culprit(self) -> str:
        """The role and rank that ended the job; empty if it has finished."""
        rank = self.end.whole("rank") if self.end else None
        return "" if rank is None else self._roles.seating.label(rank)

    def ready(self) -> None:
        self.was_ready = True
        self._post({"kind": "ready"})

    def waiting(self, answer: str) -> None:
        self._post({"kind": "waiting", "answer": answer})

    def _post(self, message: Mapping[str, Any]) -> None:
        with suppress(OSError):  # `_listen` sees it, too
            self._channel.send(message)

    def _listen(self) -> None:
        try:
            while True:
                for message in self._channel.receive():
                    self._take(message)
        except OSError as error:
            words = f"the connection to rank 0, which coordinates the roles, has ended: {reason(error)}"
            self._take(Fields({"kind": "end", "how": How.FAILED.value, "rank": 0, "why": words}))
            self._take(Fields({"kind": "over"}))
            self._channel.connection.close()

    def _take(self, message: Fields) -> None:
        ends = message.text("kind") == "end" and self.end is None
        with self._changed:
            match message.text("kind"):
                case "start":
                    self.addresses, self._started = addresses_in(message), True
                case "again":
                    self._again = message
                case "end":
                    self.end = self.end or message
                case "over":
                    self._over = True
            self._changed.notify_all()
        if ends:
            threading.Thread(target=self.on_end, name="end", daemon=True).start()


def _connected(attempt: Attempt, rank: int) -> Channel:
    """A channel to rank 0. Raises TaskError."""
    host, port = meeting.find(attempt)
    try:
        connection = socket.create_connection((host, port), meeting.TIMEOUT_SECONDS)
        try:
            nonce, own = _exactly(connection, 32), os.urandom(32)
            connection.sendall(own + rank.to_bytes(4, "big"))
            return Channel(connection, secret.read(attempt), f"from {rank}", f"to {rank}", nonce + own)
        except OSError:
            connection.close()
            raise
    except OSError as error:
        raise _no_coordinator(f"cannot reach it at {host}:{port}: {reason(error)}") from error


def _no_coordinator(why: str) -> TaskError:
    hint = "name the network that joins the nodes as `interface` in the cluster file"
    return TaskError(f"no connection to rank 0, which coordinates the roles: {why}", hint, Cause.NETWORK)


def _read(connection: socket.socket) -> bytes:
    """What has arrived; waits for something. Raises OSError at the end."""
    if block := connection.recv(1 << 16):
        return block
    raise ConnectionResetError("the connection has ended")


def _exactly(connection: socket.socket, count: int) -> bytes:
    content = b""
    while len(content) < count:
        block = connection.recv(count - len(content))
        if not block:
            raise ConnectionResetError("the connection has ended")
        content += block
    return content


def probe(ready: str, logs: dict[Path, int]) -> str:
    """Whether a program is ready: empty, or what was seen instead.

    `logs` are its logs, and from where each is to be searched, which this function moves on.
    """
    scheme, _, rest = ready.partition(":")
    try:
        if scheme == "file":
            return "" if os.path.exists(rest) else f"no such file: {rest}"  # noqa: PTH110 - may be any text
        if scheme == "log":
            printed = {_printed(rest.encode(), log, logs) for log in logs}  # in each, which moves its place on
            return "" if True in printed else f"not printed yet: {rest}"
        url = urlsplit(ready)
        if url.hostname is None or url.port is None:
            return f"no host and port: {ready}"
        if scheme == "tcp":
            socket.create_connection((url.hostname, url.port), _PROBE_SECONDS).close()
            return ""
        connection = HTTPConnection(url.hostname, url.port, timeout=_PROBE_SECONDS)
        connection.request("GET", (url.path or "/") + (f"?{url.query}" if url.query else ""))
        status = connection.getresponse().status
        connection.close()
        return "" if status < 400 else f"{ready} answers {status}"
    except (OSError, ValueError, HTTPException) as error:
        return f"{ready}: {reason(error)}"


def _printed(text: bytes, log: Path, logs: dict[Path, int]) -> bool:
    if not exists(log):
        return False
    content = read_regular(log, lambda file: (file.seek(logs[log]), file.read(_MOST_SEARCHED))[1])
    logs[log] += max(0, len(content) - len(text) + 1)
    return text in content

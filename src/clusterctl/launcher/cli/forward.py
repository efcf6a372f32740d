"""Commands whose cluster is on another machine: the command line is sent there with the local files it needs."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import sys
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from clusterctl.launcher.api.export import check_output
from clusterctl.launcher.api.remote import request as api
from clusterctl.launcher.api.remote.request import Payload, Sends, load_payload, payload_of_restart, text_file
from clusterctl.launcher.cli import options
from clusterctl.launcher.display.plain import ForeignOutput, plain
from clusterctl.shared.errors import HostError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from clusterctl.launcher.api.remote.cluster import RemoteCluster
    from clusterctl.launcher.api.tunnel import ListeningEnd

_TOKEN = re.compile(r"[\w-]{1,100}", re.ASCII)
_MOST_ANSWERS = 3


@dataclass(frozen=True, kw_only=True)
class Manner:
    """How a command is sent to the other machine (`cli.remote.remotely`). By default it only shows something."""

    changes: bool = False  # it is run exactly once, even if the connection breaks
    asks: bool = False  # it may ask for confirmation, unless --yes
    job: str = ""  # the parameter that names a job, whose file is sent along
    code: bool = False  # with its code
    chooses: Callable[[Mapping[str, Any]], str] | None = None  # of several clusters, NAME,NAME, the one that gets it
    several: bool = False  # with NAME,NAME it runs here, and asks each of the clusters
    restarts: bool = False  # it may get the secret variables of the run's job
    files: str = ""  # the parameter that may name files of this machine: then it runs here
    upload: str = ""  # the parameter that may name a file to send along
    watch: str = ""  # the flag with which it goes on to show what changes, or "always"
    lines: bool = False  # what it shows then are lines that stay
    screen: bool = False  # it takes over the terminal, unless --once
    session: bool = False  # it is a program that the user talks to, and cannot be repeated
    output: str = ""  # the end of the name of the file that it writes, on this machine
    opens: str = ""  # the flag with which a browser of this machine shows that file
    tunnel: Callable[[Mapping[str, Any]], ListeningEnd] | None = None  # makes the end here of a tunnel from there
    port: bool = False  # it is a web server, whose port is forwarded to this machine


@dataclass
class Forwarded:
    """One command on another machine: `words` as typed, `values` as parsed by click."""

    manner: Manner
    values: Mapping[str, Any]
    place: RemoteCluster
    words: Sequence[str]
    _waits_for: dict[str, Any] | None = field(default=None, init=False)
    _refused: set[str] = field(default_factory=set, init=False)
    _answered: int = field(default=0, init=False)
    _port: int = field(default=0, init=False)  # of this machine, for the dashboard
    _brought: int | None = field(default=None, init=False)  # the port there that is forwarded to it

    def run(self) -> int:
        """Run the command on its cluster's host and return its exit code."""
        if self.manner.output:
            return self._write_here()
        if self.manner.port:
            return self._show_dashboard()
        if self.manner.tunnel:  # the command there connects to the node, and this machine listens
            end = self.manner.tunnel(self.values)
            with end.in_background() as (given, put):
                code = self._talk(self.words, output=put, given=given)
            if end.ended:
                click.echo(plain(f"the tunnel ended: {end.ended}"), err=True)
            return 0 if end.ended else code
        code = self._talk(self.words)
        if code or self._waits_for is None:
            return code
        # Waiting is a request of its own, which may be repeated.
        return self._talk([options.AWAIT, json.dumps(self._waits_for)], repeat=api.Repeat.REDRAWN)

    @property
    def _repeat(self) -> api.Repeat:
        if self.manner.session:
            return api.Repeat.NEVER
        if self.manner.watch == "always" or (self.manner.watch and self.values.get(self.manner.watch)):
            return api.Repeat.LINES if self.manner.lines else api.Repeat.REDRAWN
        return api.Repeat.ONCE if self.manner.changes and not self.values.get("dry_run") else api.Repeat.HELD

    @property
    def _is_interactive(self) -> bool:
        if self.manner.screen:
            return not self.values["once"] and _is_terminal(0) and _is_terminal(1)
        return self.manner.session

    @cached_property
    def _payload(self) -> Payload:
        """The files to upload with the command; the user may be asked whether to copy a large project."""
        if self.manner.upload:
            source = Path(self.values[self.manner.upload])
            return Payload(uploads=[source.absolute()]) if source.is_file() else Payload()
        if self.manner.restarts:
            return payload_of_restart(self.place.cluster)
        if not self.manner.job:
            return Payload()
        values = self.values
        load = partial(
            load_payload,
            self.place.cluster,
            values[self.manner.job],
            stage=values.get("stage"),
            program=values.get("program", ()),
            overrides=options.typed_settings(values),
            sends=Sends.CODE if self.manner.code and values["dry_run"] != "script" else Sends.VARIABLES,
        )
        payload = options.asked_if_large(load, large=bool(values.get("large_code")))
        if file := values.get("sweep_file"):
            payload.others.append(text_file(Path(file)))
        for line in (line for project in payload.projects for line in project.ignored):
            options.warn(f"code: ignored: {line}")
        return payload

    def _write_here(self) -> int:
        """Let the command print its file there, and write it on this machine."""
        opened = bool(self.manner.opens and self.values[self.manner.opens])
        if opened and self.values["output"] == "-":
            raise UsageError("--open needs a file", "leave out --output -")
        start = options.browser() if opened else None
        name = self.values["names"][0] if "names" in self.values else self.values["name"]
        output = self.values["output"] or f"{Path(name).name.lstrip('@')}{self.manner.output}"
        far = [*_without(_without(self.words, "--output"), "--open"), "--output", "-"]
        if output == "-":
            return self._talk(far)
        check_output(Path(output), f"{click.get_current_context().info_name}{self.manner.output}")
        if not self.values.get("force", True) and Path(output).exists():
            raise UsageError(
                f"file already exists: {output}", "replace it with --force, or choose another with --output"
            )
        aside = Path(output).with_name(f".{Path(output).name}.{os.getpid()}")
        try:
            with aside.open("wb") as file:
                code = self._talk(far, output=file.write)
            if code == 0:
                aside.replace(output)
                click.echo(output)
                if start:
                    start(Path(output))
        finally:
            aside.unlink(missing_ok=True)
        return code

    def _show_dashboard(self) -> int:
        """Run the dashboard there on a free port and forward that port to this machine."""
        self._port = self.values["port"] or 0
        if not self._port:
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                self._port = free.getsockname()[1]
        try:
            return self._talk(_without(self.words, "--port"))
        finally:
            self._leave_port()

    def _bring_port(self, there: object) -> None:
        """Forward the dashboard's port and show its address here: a port and a token, as `there` tells them."""
        match there:
            case {"port": int(port), "token": str(token)} if 0 < port < 2**16 and _TOKEN.fullmatch(token):
                self._leave_port()  # that of an earlier connection
                api.bring_port(self.place.host, self._port, port)
                self._brought = port
                click.echo(f"http://127.0.0.1:{self._port}/?token={token}")
                click.echo(options.CTRL_C, err=True)
            case _:
                raise HostError(f"{self.place.host} did not send the dashboard's address", "run the command again")

    def _leave_port(self) -> None:
        if self._brought is not None:
            api.leave_port(self.place.host, self._port, self._brought)
            self._brought = None

    def _talk(
        self,
        words: Sequence[str],
        *,
        repeat: api.Repeat | None = None,
        output: Callable[[bytes], Any] | None = None,
        given: int | None = None,
    ) -> int:
        """Send the request. `output` takes what the command prints there, `given` is a pipe to its input."""
        payload, repeat = (None, repeat) if repeat else (self._payload, self._repeat)
        size = shutil.get_terminal_size()
        terminal = api.Terminal(
            input=_is_terminal(0),
            output=output is None and _is_terminal(1),
            errors=_is_terminal(2),
            columns=size.columns,
            lines=size.lines,
        )
        asked = api.request(
            self.place,
            words,
            payload,
            terminal=terminal,
            interactive=self._is_interactive,
            once=repeat is api.Repeat.ONCE,
        )
        interactive = self._is_interactive and given is None  # whether it reads the keys
        with _forwarded_terminal(interactive=interactive) as signals:
            callbacks = api.Callbacks(
                output or _to(1, filtered=not interactive),
                _to(2, filtered=not interactive),
                answer=self._answer,
                notice=_notice,
                input=0 if interactive else given,
                signals=signals if given is None else None,
            )
            return api.Conversation(
                self.place.host, self.place.cluster.remote_python, asked, callbacks, repeat
            ).result()

    def _answer(self, question: dict[str, Any]) -> Iterator[bytes]:
        """Answer a question of the other machine, which is not trusted."""
        if question.get("line"):
            self._answered += 1
            asks = self.manner.asks and not self.values["yes"] and self._answered <= _MOST_ANSWERS
            yield _yes_or_no() if asks else b""
        elif "wait" in question:
            self._waits_for = question["wait"] if self.values.get("follow") or self.values.get("wait") else None
        elif "dashboard" in question and self.manner.port:
            self._bring_port(question["dashboard"])
        else:
            if (name := self._payload.refused(question)) and name not in self._refused:
                self._refused.add(name)
                hint = f"if the run needs it, add to resume or rerun: --set env.{name}=VALUE"
                options.warn(f"{self.place.host} requested your variable {name}, which was not sent", hint)
            yield from self._payload.answer(question)


def _without(words: Sequence[str], name: str) -> list[str]:
    """The command line without the option `name` and its value."""
    options = [one for one in click.get_current_context().command.params if isinstance(one, click.Option)]
    with_value = {name for option in options if not option.is_flag for name in option.opts}
    kept, left = [], list(words)
    while left and left[0] != "--":
        word = left.pop(0)
        value = [left.pop(0)] if word in with_value and left else []
        if word.partition("=")[0] != name:
            kept += [word, *value]
    return kept + left


def _yes_or_no() -> bytes:
    """The user's answer to a question for confirmation; anything else that was typed stays here."""
    typed = sys.stdin.readline() if sys.stdin else ""
    if not typed:
        return b""  # no answer
    word = typed.strip().lower()
    return b"y\n" if word in ("y", "yes") else b"n\n" if word in ("n", "no", "") else b"?\n"


def _to(descriptor: int, *, filtered: bool) -> Callable[[bytes], None]:
    def write(data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]

    return ForeignOutput(write).take if filtered and _is_terminal(descriptor) else write


def _notice(text: str) -> None:
    """Print a line to stderr; a raw terminal does not return to its beginning by itself."""
    import termios

    try:
        is_raw = not termios.tcgetattr(2)[1] & termios.OPOST
    except (OSError, termios.error):
        is_raw = False
    click.echo(text + ("\r" if is_raw else ""), err=True)


@contextmanager
def _forwarded_terminal(*, interactive: bool) -> Iterator[api.Signals]:
    """Forward Ctrl-C and the terminal's size to the other machine, and every key if `interactive`."""
    wake, waker = os.pipe()
    os.set_blocking(waker, False)
    signals = api.Signals(wake)

    def interrupt(*_: object) -> None:
        if not signals.listening:
            raise KeyboardInterrupt
        signals.interrupted = True

    def resize(*_: object) -> None:
        size = shutil.get_terminal_size()
        signals.size = json.dumps([size.columns, size.lines]).encode()

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGWINCH)}
    if before[signal.SIGINT] is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, interrupt)
    signal.signal(signal.SIGWINCH, resize)
    waker_before = signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    modes = None
    if interactive and _is_terminal(0) and _is_terminal(1):
        import termios
        import tty

        modes = termios.tcgetattr(0)
        tty.setraw(0, termios.TCSADRAIN)  # TCSADRAIN keeps pending input
    try:
        yield signals
    finally:
        if modes is not None:
            with suppress(OSError):
                termios.tcsetattr(0, termios.TCSADRAIN, modes)
        signal.set_wakeup_fd(waker_before)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(wake)
        os.close(waker)


def _is_terminal(descriptor: int) -> bool:
    try:
        return os.isatty(descriptor)
    except OSError:
        return False

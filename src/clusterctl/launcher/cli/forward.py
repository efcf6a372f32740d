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
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from clusterctl.launcher.api import elsewhere as api
from clusterctl.launcher.api.cargo import Cargo, cargo_of_restart, load_cargo, text_file
from clusterctl.launcher.api.export import check_output
from clusterctl.launcher.cli import options
from clusterctl.launcher.display.build_progress import shown
from clusterctl.shared.errors import HostError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from clusterctl.launcher.api.elsewhere import Elsewhere

# Commands that change something there: run exactly once, even if the connection breaks.
_CHANGING = {"submit", "resume", "rerun", "cancel", "release", "alloc", "clean", "track", "notify"}
_CHANGING |= {f"image {name}" for name in ("import", "prune")} | {"data generate", "data prepare"}
_ASKING = {"cancel", "clean", "image prune"}  # for confirmation, unless --yes
_RESTARTING = {"resume", "rerun"}
_WITH_JOB = {"submit": "job", "alloc": "job", "nodes": "job"}
_ADDRESS = re.compile(rb"http://127\.0\.0\.1:([0-9]{1,5})(/\?token=[\w-]+)\s+")
_LONGEST_ADDRESS = 1000
_MOST_ANSWERS = 3
_WAITING = ("--follow", "--wait", "--timeout")


def send(name: str, values: dict[str, Any], place: Elsewhere, words: tuple[str, ...]) -> int:
    """Run the command `name` on its cluster's host and return its exit code."""
    cargo = _cargo(name, values, place)
    if name in ("report", "export"):
        return _write_here(name, values, place, words)
    if name == "dashboard":
        return _show_dashboard(place, words, values["port"])
    follow, wait = values.get("follow") and name != "logs", values.get("wait")
    if name in _CHANGING and not values.get("dry_run"):
        printed = api.Printed()  # waiting is a separate request, which may be repeated
        confirms = _confirms(name, values)
        code = _talk(place, _without(words, *_WAITING), cargo, api.Repeat.ONCE, also=printed, confirms=confirms)
        if code or not (follow or wait):
            return code
        arguments = {"ids": _ids(printed), "follow": bool(follow), "timeout": values.get("timeout")}
        return _talk(place, (), None, api.Repeat.REDRAWN, operation="await", arguments=json.dumps(arguments))
    interactive = _is_interactive(name, values)
    return _talk(place, words, cargo, _repeat(name, values), interactive=interactive, confirms=_confirms(name, values))


def _repeat(name: str, values: dict[str, Any]) -> api.Repeat:
    if name == "logs" and values["follow"]:
        return api.Repeat.LINES
    if name == "monitor" or values.get("watch"):
        return api.Repeat.REDRAWN
    return api.Repeat.NEVER if name == "attach" else api.Repeat.HELD


def _is_interactive(name: str, values: dict[str, Any]) -> bool:
    if name == "monitor":
        return not values["once"] and _is_terminal(0) and _is_terminal(1)
    return name == "attach"


def _confirms(name: str, values: dict[str, Any]) -> bool:
    return name in _ASKING and not values["yes"]


def _cargo(name: str, values: dict[str, Any], place: Elsewhere) -> Cargo:
    """The files to upload with the command; the user may be asked whether to copy a large project."""
    if name.endswith(" import"):
        source = Path(values["source"])
        return Cargo(uploads=[source.absolute()]) if source.is_file() else Cargo()
    if name in _RESTARTING:
        return cargo_of_restart(place.cluster)
    if name not in _WITH_JOB:
        return Cargo()
    shortcuts = ("nodes", "gpus_per_node", "tasks_per_node", "time", "partition", "account", "qos", "name", "code")
    job = values[_WITH_JOB[name]]
    changes = options.typed_settings(
        values["settings"], {flag: values.get(flag) for flag in shortcuts if not isinstance(values.get(flag), bool)}
    )
    chosen: dict[str, Any] = {"stage": values.get("stage"), "program": values.get("program", ()), "overrides": changes}
    chosen["with_code"] = name == "submit" and values["dry_run"] != "script"

    def load(large: bool) -> Cargo:
        with shown() as progress:
            cargo = load_cargo(place.cluster, job, **chosen, large=large, progress=progress)
        if file := values.get("sweep_file"):
            cargo.others.append(text_file(Path(file)))
        return cargo

    cargo = options.asked_if_large(load, large=bool(values.get("large_code")))
    for line in (line for project in cargo.projects for line in project.ignored):
        options.warn(f"code: ignored: {line}")
    return cargo


def _without(words: tuple[str, ...], *names: str) -> list[str]:
    """The command line without the options `names` and their values."""
    options = [one for one in click.get_current_context().command.params if isinstance(one, click.Option)]
    with_value = {name for option in options if not option.is_flag for name in option.opts}
    kept, left = [], list(words)
    while left and left[0] != "--":
        word = left.pop(0)
        value = [left.pop(0)] if word in with_value and left else []
        if word.partition("=")[0] not in names:
            kept += [word, *value]
    return kept + left


def _ids(printed: api.Printed) -> list[str]:
    """The ids of the runs or sweep printed by a submission."""
    found = []
    for line in printed.text.splitlines():
        if line.startswith("{"):
            record = api.parsed(line)
            found.append(str(record.get("id")) if isinstance(record, dict) else "")
        elif line.strip():
            found.append(line.strip())
    return found


def _write_here(name: str, values: dict[str, Any], place: Elsewhere, words: tuple[str, ...]) -> int:
    """Run `report` or `export` there and write the output to a file on this machine."""
    run = values["names"][0] if name == "report" else values["name"]
    suffix = ".html" if name == "report" else ".tar.gz"
    output = values["output"] or f"{Path(run).name.lstrip('@')}{suffix}"
    if output != "-":
        check_output(Path(output), f"{name}{suffix}")
        if name == "export" and Path(output).exists() and not values["force"]:
            raise UsageError(
                f"file already exists: {output}", "replace it with --force, or choose another with --output"
            )
    far = [*_without(words, "--output"), "--output", "-"]
    if output == "-":
        return _talk(place, far, None, api.Repeat.HELD)
    aside = Path(output).with_name(f".{Path(output).name}.{os.getpid()}")
    try:
        with aside.open("wb") as file:
            code = _talk(place, far, None, api.Repeat.HELD, output=file.write)
        if code == 0:
            aside.replace(output)
            click.echo(output)
    finally:
        aside.unlink(missing_ok=True)
    return code


def _show_dashboard(place: Elsewhere, words: tuple[str, ...], port: int | None) -> int:
    """Run the dashboard there on a free port and forward that port to this machine."""
    from clusterctl.launcher.cli.pages import CTRL_C

    here = port or _free_port()
    brought: list[int] = []
    received = bytearray()

    def bring(data: bytes) -> None:
        received.extend(data)
        if len(received) > _LONGEST_ADDRESS:
            raise HostError(f"{place.host} did not print the dashboard's address", "run the command again")
        if found := _ADDRESS.fullmatch(received):
            there = int(found[1])
            api.bring_port(place.host, here, there)
            brought.append(there)
            click.echo(f"http://127.0.0.1:{here}{found[2].decode()}")
            click.echo(CTRL_C, err=True)
            received.clear()

    try:
        return _talk(place, _without(words, "--port"), None, api.Repeat.REDRAWN, output=bring)
    finally:
        if brought:
            api.leave_port(place.host, here, brought[-1])


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _talk(
    place: Elsewhere,
    words: tuple[str, ...] | list[str],
    cargo: Cargo | None,
    repeat: api.Repeat,
    *,
    interactive: bool = False,
    output: Callable[[bytes], Any] | None = None,
    also: api.Printed | None = None,
    confirms: bool = False,
    operation: str = "",
    arguments: str = "{}",
) -> int:
    size = shutil.get_terminal_size()
    terminal = api.Terminal(
        input=_is_terminal(0),
        output=output is None and _is_terminal(1),
        errors=_is_terminal(2),
        columns=size.columns,
        lines=size.lines,
    )
    asked = api.request(
        place, words, cargo, operation=operation, arguments=arguments, terminal=terminal,
        interactive=interactive, once=repeat is api.Repeat.ONCE,
    )  # fmt: skip

    def show(data: bytes) -> None:
        if also is not None:
            also.take(data)
        (output or _to(1))(data)

    answered, refused = 0, set[str]()

    def answer(question: dict[str, Any]) -> Iterator[bytes]:
        nonlocal answered
        if question.get("line"):
            answered += 1
            yield _yes_or_no() if confirms and answered <= _MOST_ANSWERS else b""
        elif cargo:
            if (name := cargo.refused(question)) and name not in refused:
                refused.add(name)
                hint = f"if the run needs it, add to resume or rerun: --set env.{name}=VALUE"
                options.warn(f"{place.host} requested your variable {name}, which was not sent", hint)
            yield from cargo.answer(question)

    with _forwarded_terminal(interactive=interactive) as signals:
        ends = api.Ends(show, _to(2), answer, _notice, 0 if interactive else None, signals)
        return api.Conversation(place.host, place.cluster.remote_python, asked, ends, repeat).result()


def _yes_or_no() -> bytes:
    """The user's answer to a question for confirmation; anything else that was typed stays here."""
    typed = sys.stdin.readline() if sys.stdin else ""
    if not typed:
        return b""  # no answer
    word = typed.strip().lower()
    return b"y\n" if word in ("y", "yes") else b"n\n" if word in ("n", "no", "") else b"?\n"


def _to(descriptor: int) -> Callable[[bytes], None]:
    def write(data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]

    return write


def _notice(text: str) -> None:
    click.echo(text + ("\r" if _is_raw() else ""), err=True)


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
    modes = _made_raw() if interactive else None
    try:
        yield signals
    finally:
        if modes is not None:
            import termios

            with suppress(OSError):
                termios.tcsetattr(0, termios.TCSADRAIN, modes)
        signal.set_wakeup_fd(waker_before)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(wake)
        os.close(waker)


def _made_raw() -> list[Any] | None:
    """Put the terminal into raw mode; its earlier modes, or None without a terminal."""
    if not (_is_terminal(0) and _is_terminal(1)):
        return None
    import termios
    import tty

    modes = termios.tcgetattr(0)
    tty.setraw(0, termios.TCSADRAIN)  # TCSADRAIN keeps pending input
    return modes


def _is_terminal(descriptor: int) -> bool:
    try:
        return os.isatty(descriptor)
    except OSError:
        return False


def _is_raw() -> bool:
    import termios

    try:
        return not termios.tcgetattr(2)[1] & termios.OPOST
    except (OSError, termios.error):
        return False

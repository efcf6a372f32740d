"""What a person sees: tmux, whose window can be resized and read, and pages in a headless browser."""

from __future__ import annotations

import json
import os
import shutil
import socketserver
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

# A terminal.

TMUX = shutil.which("tmux")


@dataclass
class Terminal:
    """A window in which one program runs."""

    socket: Path

    def resize(self, columns: int, lines: int) -> None:
        self.call("resize-window", "-x", str(columns), "-y", str(lines))

    def lines(self) -> list[str]:
        """The lines on the screen."""
        return self.call("capture-pane", "-p").split("\n")

    def call(self, *words: str) -> str:
        command = [str(TMUX), "-S", str(self.socket), "-f", "/dev/null", *words]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=90).stdout


@contextmanager
def opened_terminal(
    socket: Path, size: tuple[int, int], command: list[str], environment: Mapping[str, str]
) -> Iterator[Terminal]:
    """Run `command` in a terminal of `size` within the block, without COLUMNS and LINES, which would fix the size."""
    terminal = Terminal(socket)
    given = [word for name, value in environment.items() for word in ("-e", f"{name}={value}")]
    unset = ["env", "-u", "COLUMNS", "-u", "LINES"]
    columns, lines = map(str, size)
    terminal.call("new-session", "-d", "-x", columns, "-y", lines, *given, *unset, *command)
    try:
        terminal.call("set", "-g", "status", "off")
        yield terminal
    finally:
        terminal.call("kill-server")


# A page as the browser builds it, its console, and the hosts it contacts.

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

# Hosts that the browser contacts by itself, whatever the page and its flags.
_ITS_OWN = ("//update.googleapis.com/", " update.googleapis.com:", " accounts.google.com:", "//clients2.google.com/")

_ITS_FEATURES = ("NetworkTimeServiceQuerying", "OptimizationHints", "MediaRouter", "AutofillServerCommunication")


@dataclass
class Page(HTMLParser):
    """A page as the browser built it."""

    dom: str
    console: list[str]
    calls: list[str]  # the first line of each request to another host

    def __post_init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.texts: dict[str, list[str]] = {}
        self.links: list[str] = []
        self._open: list[str] = []
        self.feed(self.dom)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self._open.append(tag)
        if tag == "a":
            self.links.append(dict(attrs).get("href") or "")

    def handle_endtag(self, tag: str) -> None:
        if tag in self._open:
            del self._open[len(self._open) - 1 - self._open[::-1].index(tag) :]

    def handle_data(self, data: str) -> None:
        for tag in self._open:
            self.texts.setdefault(tag, []).append(data)

    def text(self, tag: str) -> str:
        return " ".join(self.texts.get(tag, []))


def _browse(page: Path | str, *flags: str) -> subprocess.CompletedProcess[str]:
    address = page.as_uri() if isinstance(page, Path) else page
    with tempfile.TemporaryDirectory() as profile:
        words = [*_command(profile), *flags, address]
        return subprocess.run(words, capture_output=True, text=True, timeout=90, check=True)


def _command(profile: str) -> list[str]:
    assert BROWSER
    words = [BROWSER, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    words += ["--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"]
    words += [f"--disable-features={','.join(_ITS_FEATURES)}"]
    return [*words, "--disable-default-apps", "--disable-extensions", f"--user-data-dir={profile}"]


def opened(page: Path | str, milliseconds: int = 2000) -> Page:
    """Open a file or a URL of this machine. Requests to other hosts go to our proxy, which records and drops them."""
    calls: list[str] = []

    class Note(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            calls.append(self.request.recv(200).decode(errors="replace").partition("\r\n")[0])

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Note) as proxy:
        threading.Thread(target=proxy.serve_forever, args=(0.05,)).start()
        try:
            port = proxy.server_address[1]
            flags = (f"--proxy-server=127.0.0.1:{port}", "--enable-logging=stderr", "--dump-dom")
            done = _browse(page, *flags, f"--virtual-time-budget={milliseconds}")
        finally:
            proxy.shutdown()
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return Page(done.stdout, console, [call for call in calls if call and not any(own in call for own in _ITS_OWN)])


def pictured(page: Path | str, picture: Path, *, dark: bool, width: int = 1100, height: int = 1400) -> None:
    """Save a screenshot of a file or a URL as PNG."""
    scheme = ["--blink-settings=preferredColorScheme=0"] if dark else ["--blink-settings=preferredColorScheme=1"]
    _browse(page, *scheme, "--hide-scrollbars", f"--window-size={width},{height}", f"--screenshot={picture}")


def answer_of(address: str, script: str) -> object:
    """The value of the promise `script` on the page: for pages with workers, which have no virtual time."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile, ExitStack() as closing:
        read_there, write_here = os.pipe()
        read_here, write_there = os.pipe()
        # The browser reads requests from descriptor 3 and writes answers to 4, each terminated by a zero byte.
        words = ["bash", "-c", f'exec "$@" 3<&{read_there} 4>&{write_there}', "bash"]
        words += [*_command(profile), "--remote-debugging-pipe"]
        silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        browser = subprocess.Popen(words, pass_fds=(read_there, write_there), **silent)
        closing.callback(browser.wait)
        closing.callback(browser.kill)
        os.close(read_there)
        os.close(write_there)
        requests = closing.enter_context(os.fdopen(write_here, "wb", buffering=0))
        answers = closing.enter_context(os.fdopen(read_here, "rb"))

        def ask(method: str, session: str | None = None, **parameters: object) -> dict[str, Any]:
            request = {"id": 1, "method": method, "params": parameters}
            requests.write(json.dumps(request | ({"sessionId": session} if session else {})).encode() + b"\0")
            text = b""
            while byte := answers.read(1):
                if byte != b"\0":
                    text += byte
                    continue
                answer, text = json.loads(text), b""
                if answer.get("id") == 1:  # the others are events
                    return dict(answer["result"])
            raise EOFError("the browser has ended")

        target = ask("Target.createTarget", url="about:blank")["targetId"]
        session = ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        ask("Page.navigate", session, url=address)
        found = ask("Runtime.evaluate", session, expression=script, awaitPromise=True, returnByValue=True)
        ask("Browser.close")
        return found["result"].get("value")


# Legibility.


def contrast(one: str, other: str) -> float:
    """The contrast of two colours such as #0088ff, as WCAG 2 defines it."""

    def luminance(colour: str) -> float:
        parts = (int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5))
        linear = (part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
        return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)

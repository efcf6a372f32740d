"""A real browser without a window: what a page becomes in it, what it complains about, and whom it calls."""

from __future__ import annotations

import shutil
import socketserver
import subprocess
import tempfile
import threading
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

# Whom the browser calls for itself, whatever page it shows and whatever it is told.
_ITS_OWN = ("//update.googleapis.com/", " update.googleapis.com:", " accounts.google.com:", "//clients2.google.com/")

_ITS_FEATURES = ("NetworkTimeServiceQuerying", "OptimizationHints", "MediaRouter", "AutofillServerCommunication")


@dataclass
class Page(HTMLParser):
    """A page as the browser built it."""

    dom: str
    console: list[str]
    calls: list[str]  # the first line of each request to anybody; a connection without one asks nothing

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
    assert BROWSER
    address = page.as_uri() if isinstance(page, Path) else page
    with tempfile.TemporaryDirectory() as profile:
        words = [BROWSER, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        words += ["--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"]
        words += [f"--disable-features={','.join(_ITS_FEATURES)}"]
        words += ["--disable-default-apps", "--disable-extensions", f"--user-data-dir={profile}", *flags]
        return subprocess.run([*words, address], capture_output=True, text=True, timeout=90, check=True)


def opened(page: Path | str, milliseconds: int = 2000) -> Page:
    """Open a file, or an address of this machine. Who else is called is our proxy, which notes that and hangs up."""
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
    """Draw a file, or an address, as a PNG."""
    scheme = ["--blink-settings=preferredColorScheme=0"] if dark else ["--blink-settings=preferredColorScheme=1"]
    _browse(page, *scheme, "--hide-scrollbars", f"--window-size={width},{height}", f"--screenshot={picture}")

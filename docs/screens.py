"""Pictures of the terminal and of the report, from real runs of `cora` on this machine (tmux; chromium)."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Iterator

CLUSTERCTL = str(Path(sys.executable).with_name("clusterctl"))
SMALL, WIDE = (80, 24), (200, 60)
_BROWSERS = ("chromium", "chromium-browser", "google-chrome")
_LONG_RUN = "clusterctl submit cora --cluster local --set train.epochs=120 --set name=cora-long"

_SWEEP = (
    "clusterctl submit cora --cluster local --sweep train.lr=1e-3,3e-3,1e-2 --sweep train.hidden_channels=16,64,256"
    " --set name=cora-sweep --at-once 2 2>/dev/null"
)


def draw_all(folder: Path) -> None:
    """Write every picture into `folder`."""
    folder.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        with terminal(home, 100, 24) as screen:
            screen.type("clusterctl submit cora --cluster local --follow", until="next:")
            screen.type("clusterctl status", until="finished")
            screen.draw(folder / "run.svg", "clusterctl")
        with terminal(home, 110, 20) as screen:
            screen.type("clear; clusterctl logs cora --tail 12", until="Done!")
            screen.draw(folder / "logs.svg", "clusterctl logs")
        with terminal(home, 100, 8) as screen:
            screen.type(f"{_LONG_RUN} 2>/dev/null", until="cora-long-")
            screen.type("clear; clusterctl status", until="training", again=True)
            screen.draw(folder / "status.svg", "clusterctl status")
        for columns, lines in (SMALL, WIDE):
            with terminal(home, columns, lines) as screen:
                screen.type("clusterctl monitor --cluster local", until="val accuracy")
                screen.draw(folder / f"monitor_{columns}x{lines}.svg", "clusterctl monitor")
                screen.press("q")
        with terminal(home, 100, 24) as screen:
            screen.type("clusterctl cancel cora-long; clusterctl report cora-2", until="report.html")
        (report,) = (home / "runs").glob("*/report.html")
        photograph(report, folder, "report")
        with terminal(home, 100, 14) as screen:
            screen.type(f'{_SWEEP} --wait; echo wai""ted', until="waited")
            screen.type("clear; clusterctl status @last", until="9 finished")
            screen.draw(folder / "sweep_status.svg", "clusterctl status")
            screen.type(f"clear; clusterctl report @last --output {home}/sweep.html", until="sweep.html")
        photograph(home / "sweep.html", folder, "sweep_report")


@dataclass
class Terminal:
    """A real terminal of a given size with a shell."""

    tmux: list[str]
    columns: int

    def type(self, command: str, until: str, *, again: bool = False) -> None:
        """Type `command` and wait until it shows `until`; with `again`, retype it until then."""
        self._wait_for_prompt()
        self.press(command, "Enter")
        deadline = time.monotonic() + 180
        while until not in (screen := self._captured()).rpartition(command)[2]:
            if time.monotonic() > deadline:
                raise SystemExit(f"{command} never showed {until!r}:\n{screen}")
            time.sleep(1)
            if again:
                self.press(command, "Enter")
        time.sleep(1)  # wait for the remaining output and the prompt

    def _wait_for_prompt(self) -> None:
        """Wait until the shell reads: what is typed before is shown twice."""
        deadline = time.monotonic() + 60
        while not self._captured().rstrip().endswith("$"):
            if time.monotonic() > deadline:
                raise SystemExit(f"the shell showed no prompt:\n{self._captured()}")
            time.sleep(0.1)

    def press(self, *keys: str) -> None:
        subprocess.run([*self.tmux, "send-keys", *keys], check=True)

    def draw(self, path: Path, title: str) -> None:
        """Save the screen as an SVG."""
        console = Console(record=True, width=self.columns, file=io.StringIO(), force_terminal=True)
        console.print(Text.from_ansi(self._captured("-e").rstrip()))
        path.write_text(console.export_svg(title=title, unique_id=path.stem))

    def _captured(self, *flags: str) -> str:
        words = [*self.tmux, "capture-pane", "-p", *flags]
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout


@contextmanager
def terminal(home: Path, columns: int, lines: int) -> Iterator[Terminal]:
    """A terminal with its runs folder in `home`."""
    tmux = ["tmux", "-S", f"{home}/tmux{time.monotonic_ns()}", "-f", "/dev/null"]
    environment = {**os.environ, "CLUSTERCTL_RUNS": f"{home}/runs", "XDG_STATE_HOME": f"{home}/state"}
    environment |= {"TERM": "xterm-256color", "PATH": f"{Path(CLUSTERCTL).parent}:{os.environ['PATH']}"}
    environment.pop("CLUSTERCTL_CLUSTER", None)
    shell = ["new-session", "-d", "-x", str(columns), "-y", str(lines), "env PS1='$ ' bash --norc --noprofile"]
    subprocess.run([*tmux, *shell], env=environment, cwd=Path(__file__).parents[1], check=True)
    subprocess.run([*tmux, "set", "-g", "status", "off"], check=True)
    try:
        yield Terminal(tmux, columns)
    finally:
        subprocess.run([*tmux, "kill-server"], check=False)


def photograph(page: Path, folder: Path, name: str) -> None:
    """Take pictures of a report in light and dark mode."""
    browser = next(filter(None, map(shutil.which, _BROWSERS)), None)
    if browser is None:
        raise SystemExit("no chromium for the pictures of the report; as root: tests/install.sh browser")
    for scheme, number in (("dark", 0), ("light", 1)):
        with tempfile.TemporaryDirectory() as profile:
            words = [browser, "--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}"]
            words += [f"--blink-settings=preferredColorScheme={number}", "--hide-scrollbars", "--window-size=1100,1500"]
            picture = f"--screenshot={folder / f'{name}_{scheme}.png'}"
            subprocess.run([*words, picture, page.as_uri()], capture_output=True, timeout=90, check=True)

"""Writes what must not drift from the code: the reference pages, and the pictures of the terminal from real runs.

python docs/generate.py             both
python docs/generate.py reference   the pages alone (tests/test_docs.py checks that they are current)
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

DOCS = Path(__file__).resolve().parent
CLUSTERCTL = str(Path(sys.executable).with_name("clusterctl"))
WIDTH, HEIGHT = 100, 24


def reference() -> dict[Path, str]:
    """Page -> its text."""
    from clusterctl.cli import COMMANDS

    subcommands = [["config", name] for name in ("show", "keys", "list")]
    subcommands += [["image", name] for name in ("build", "import", "list", "inspect", "verify", "prune")]
    commands = [_page(words) for words in ([], *([name] for name in COMMANDS), *subcommands)]
    return {
        DOCS / "reference" / "commands.md": "\n".join(["# Commands\n\nGenerated from `--help`.\n", *commands]),
        DOCS / "reference" / "keys.md": "# Keys of job and cluster files\n\n" + _fenced(_output("config", "keys")),
    }


def _page(words: list[str]) -> str:
    return f"## {' '.join(['clusterctl', *words])}\n\n{_fenced(_output(*words, '--help'))}"


def _fenced(text: str) -> str:
    return f"```\n{text}```\n"


def _output(*words: str) -> str:
    environment = {**os.environ, "COLUMNS": "100", "NO_COLOR": "1"}
    return subprocess.run(
        [CLUSTERCTL, *words], env=environment, capture_output=True, text=True, check=True
    ).stdout.lstrip()


def picture(name: str, title: str, commands: dict[str, str]) -> None:
    """Type `commands` in a real terminal, each when the one before shows its text, and keep the screen as an SVG."""
    with tempfile.TemporaryDirectory() as folder:
        tmux = ["tmux", "-S", f"{folder}/tmux"]
        environment = {**os.environ, "CLUSTERCTL_RUNS": f"{folder}/runs", "XDG_STATE_HOME": f"{folder}/state"}
        environment |= {"TERM": "xterm-256color", "PATH": f"{Path(CLUSTERCTL).parent}:{os.environ['PATH']}"}
        shell = ["new-session", "-d", "-x", str(WIDTH), "-y", str(HEIGHT), "env PS1='$ ' bash --norc --noprofile"]
        subprocess.run([*tmux, *shell], env=environment, cwd=DOCS.parent, check=True)
        try:
            for command, until in commands.items():
                subprocess.run([*tmux, "send-keys", command, "Enter"], check=True)
                _wait_for(until, tmux, command)
            _draw(DOCS / "pictures" / f"{name}.svg", title, _captured(tmux, "-e"))
        finally:
            subprocess.run([*tmux, "kill-server"], check=False)


def _wait_for(text: str, tmux: list[str], command: str) -> None:
    deadline = time.monotonic() + 180
    while text not in (screen := _captured(tmux)).rpartition(command)[2]:
        if time.monotonic() > deadline:
            raise SystemExit(f"{command} never showed {text!r}:\n{screen}")
        time.sleep(0.5)
    time.sleep(0.5)  # what else it writes, and the prompt


def _captured(tmux: list[str], *flags: str) -> str:
    words = [*tmux, "capture-pane", "-p", *flags]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


def _draw(path: Path, title: str, screen: str) -> None:
    import io

    from rich.console import Console
    from rich.text import Text

    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
    console.print(Text.from_ansi(screen.rstrip()))
    path.write_text(console.export_svg(title=title, unique_id=path.stem))


def main() -> None:
    for page, text in reference().items():
        page.parent.mkdir(exist_ok=True)
        page.write_text(text)
    if "reference" not in sys.argv[1:]:
        commands = {"clusterctl submit cora --cluster local --follow": "next:", "clusterctl status": "finished"}
        picture("run", "clusterctl", commands)


if __name__ == "__main__":
    main()

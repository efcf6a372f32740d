"""Writes what must not drift from the code: reference pages, editor schemas, pictures of the terminal from real runs.

python docs/generate.py             both
python docs/generate.py reference   without the pictures (tests/test_docs.py checks that they are current)
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent
SCHEMAS = DOCS.parent / "src" / "clusterctl" / "schemas"
CLUSTERCTL = str(Path(sys.executable).with_name("clusterctl"))


def reference() -> dict[Path, str]:
    """File -> its text."""
    from clusterctl.cli import COMMANDS

    subcommands = [["config", name] for name in ("show", "keys", "schema", "list")]
    subcommands += [["image", name] for name in ("build", "import", "list", "inspect", "verify", "prune", "run")]
    subcommands += [["data", name] for name in ("generate", "prepare")]
    subcommands += [["sandbox", name] for name in ("up", "down", "status", "node")]
    commands = [_page(words) for words in ([], *([name] for name in COMMANDS), *subcommands)]
    return {
        DOCS / "reference" / "commands.md": "\n".join(["# Commands\n\nGenerated from `--help`.\n", *commands]),
        DOCS / "reference" / "keys.md": "# Keys of job and cluster files\n\n" + _fenced(_output("config", "keys")),
        DOCS / "faults.md": faults(),
        SCHEMAS.with_name("cli") / "commands.json": commands_file(),
        **{SCHEMAS / f"{name}.json": _output("config", "schema", name) for name in ("job", "cluster")},
    }


def commands_file() -> str:
    """What a shell offers, for `api/completions.py`."""
    from clusterctl.cli import clusterctl
    from clusterctl.cli.completion import described

    return json.dumps(described(clusterctl), indent=1, ensure_ascii=False) + "\n"


def faults() -> str:
    """The table of tests/faults, as a page."""
    sys.path.insert(0, str(DOCS.parent / "tests"))
    from faults.table import FAULTS

    lines = []
    for fault in FAULTS:
        cause = f"`{fault.cause}`" if fault.cause else ""
        where = f", rank {fault.rank}" if fault.rank is not None else ""
        happens = f"the run {fault.outcome}"
        if fault.name == "submit":
            happens = "no job is lost, and none is submitted twice"
        lines.append(
            f"| {fault.words} | {happens} | {cause}{where} | {fault.seconds} | {fault.tests and f'`{fault.tests}`'} |"
        )
    return _FAULTS + "\n".join(lines) + "\n"


_FAULTS = """# Faults, and how runs respond

Generated from `tests/faults/table.py`. The tests inflict these faults on runs of 4 ranks on 2 nodes of a real Slurm
(`clusterctl sandbox`): each once in `make test`, except one that takes minutes, and on every kind of training in
`make test-long`. The class is the one that `clusterctl why RUN -o json` reports for the affected attempt, with the rank
if one is to blame. The seconds are the time from the fault until `why` names it (`benchmarks/time_to_cause.py`, a
program that does 20 steps a second, default settings).

| fault | what happens | class | seconds | also tested in |
| --- | --- | --- | --- | --- |
"""


def _page(words: list[str]) -> str:
    return f"## {' '.join(['clusterctl', *words])}\n\n{_fenced(_output(*words, '--help'))}"


def _fenced(text: str) -> str:
    return f"```\n{text}```\n"


def _output(*words: str) -> str:
    environment = {**os.environ, "COLUMNS": "100", "NO_COLOR": "1"}
    return subprocess.run(
        [CLUSTERCTL, *words], env=environment, capture_output=True, text=True, check=True
    ).stdout.lstrip()


def main() -> None:
    for page, text in reference().items():
        page.parent.mkdir(exist_ok=True)
        page.write_text(text)
    if "reference" not in sys.argv[1:]:
        from screens import draw_all  # beside this file

        draw_all(DOCS / "pictures")


if __name__ == "__main__":
    main()

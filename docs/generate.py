"""Generates everything that must match the code: reference pages, editor schemas, pictures of real runs.

python docs/generate.py             both
python docs/generate.py reference   without the pictures (tests/test_docs.py checks that they are current)
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent
SITE = DOCS.parent / "mkdocs.yml"
SCHEMAS = DOCS.parent / "src" / "clusterctl" / "schemas"
CLUSTERCTL = str(Path(sys.executable).with_name("clusterctl"))


def reference() -> dict[Path, str]:
    """File -> its text."""
    sys.path.insert(0, str(DOCS))
    from guide_index import GuideIndex
    from reference_commands import command_pages, man_pages
    from reference_keys import key_pages
    from reference_python import python_page

    from clusterctl import __version__
    from clusterctl.launcher.api.agents.skill import reference_text, skill_text

    guides = GuideIndex.of(DOCS / "guides", seen_from="../../guides")
    pages = {"commands": command_pages(guides), "keys": key_pages(guides)}
    return {
        **{DOCS / "reference" / folder / name: text for folder, found in pages.items() for name, text in found.items()},
        DOCS / "reference" / "python.md": python_page(),
        **{DOCS / "man" / name: text for name, text in man_pages(__version__).items()},
        SITE: navigation(pages),
        DOCS / "faults.md": faults(),
        DOCS / "reference" / "agent-tools.md": reference_text(),
        DOCS.parent / "skills" / "clusterctl" / "SKILL.md": skill_text(),
        SCHEMAS.parent / "launcher" / "cli" / "commands.json": commands_file(),
        **{SCHEMAS / f"{name}.json": _output("config", "schema", name) for name in ("job", "cluster")},
    }


def commands_file() -> str:
    """The commands and options for shell completion (`launcher/api/completions.py`)."""
    from clusterctl.launcher.cli import clusterctl
    from clusterctl.launcher.cli.completion import described

    return json.dumps(described(clusterctl), indent=1, ensure_ascii=False) + "\n"


def decisions() -> list[str]:
    """The pages about decisions, in the order of their index."""
    return re.findall(r"^- \[[^]]+\]\(([\w-]+\.md)\)", (DOCS / "decisions" / "index.md").read_text(), re.MULTILINE)


def navigation(pages: dict[str, dict[str, str]]) -> str:
    """mkdocs.yml with the generated pages and the decisions in its navigation."""
    listed = {
        "Commands": [f"{name[:-3].replace('-', ' ')}: reference/commands/{name}" for name in pages["commands"]],
        "Keys": [f"reference/keys/{name}" for name in pages["keys"]],
        "Decisions": [f"decisions/{name}" for name in decisions()],
    }
    text = SITE.read_text()
    for title, entries in listed.items():
        lines = "".join(f"          - {entry}\n" for entry in entries if "index" not in entry)
        text = re.sub(
            rf"(- {title}:.*\n.*/index\.md\n)( {{10}}- .*\n)*", lambda match, lines=lines: match[1] + lines, text
        )
    return text


def faults() -> str:
    """The table of tests/faults, as a page."""
    sys.path.insert(0, str(DOCS.parent / "tests"))
    from faults.shapes import SHAPES
    from faults.sites import SITES
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
    page = _FAULTS + "\n".join(lines) + "\n" + _SHAPES + "".join(f"- {shape.words}\n" for shape in SHAPES.values())
    return page + _SITES + "".join(f"- {site}\n" for site in SITES)


_FAULTS = """# Faults, and how runs respond

Generated from `tests/faults/table.py`. The tests inflict these faults on runs of 4 ranks on 2 nodes of a real Slurm
(`clusterctl sandbox`): each once in `make test`, three that take long in `make test-long`, with accounting and on every
training in `make test-faults`. The class is the one that `clusterctl why RUN -o json` reports for the affected
attempt, with the rank if one is to blame. The seconds are the time from the fault until `why` names it
(`benchmarks/time_to_cause.py`, a program that does 20 steps a second, default settings).

| fault | what happens | class | seconds | also tested in |
| --- | --- | --- | --- | --- |
"""

_SHAPES = """
## On other kinds of jobs

`make test-faults` inflicts the faults on a program of each of these kinds, too, with the same outcomes.
`make test-long` has a sample of them, on a real Slurm and on the emulator: a killed rank, a requeue by hand and an
exception. The GPUs are only counted by Slurm: the nodes have none. The other run of a sweep ends with the losses of an
undisturbed one.

"""
_SITES = """
## Under other sites' rules

`make test-faults` inflicts the faults again, on a program and on `reddit`, on Slurms with other rules. The outcomes are
the same, no run is lost or doubled, and no job is left in the queue. There are two differences: where nothing is
requeued, `scontrol requeue` by hand is refused, and a run whose batch script was killed goes on.

"""


def _output(*words: str) -> str:
    environment = {**os.environ, "COLUMNS": "100", "NO_COLOR": "1"}
    return subprocess.run(
        [CLUSTERCTL, *words], env=environment, capture_output=True, text=True, check=True
    ).stdout.lstrip()


def main() -> None:
    for page, text in reference().items():
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(text)
    if "reference" not in sys.argv[1:]:
        from screens import draw_all  # beside this file

        draw_all(DOCS / "pictures")


if __name__ == "__main__":
    main()

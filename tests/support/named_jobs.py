"""Jobs for sbatch and squeue on either back end, under names that the test chooses."""

from __future__ import annotations

import re
from pathlib import Path

from support.scenario import Stage, wait_until

from clusterctl.launcher.emulator.install import ensure_stand_ins
from clusterctl.shared.spec import Emulator

FIELDS = "State:|,Reason:|,Dependency:"
ELEMENTS = "%i %K %T %r"


class NamedJobs:
    """Job IDs differ: `<name>` in a command is replaced by the job ID, and the ID by the name in squeue's output."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.numbers: dict[str, str] = {}
        if stage.cluster == "local":
            ensure_stand_ins(Path(stage.environment["XDG_STATE_HOME"]) / "clusterctl", Emulator())

    def submit(self, name: str, text: str, *options: str) -> None:
        script = self.stage.folder / f"{name}.sh"
        script.write_text(f"#!/bin/bash\n{text}\n")
        words = [self._numbered(option) for option in options]
        folder = f"--chdir={self.stage.folder}"
        answer = self.stage.slurm("sbatch", "--parsable", "--output=/dev/null", folder, *words, str(script))
        self.numbers[name] = answer.strip()

    def state(self, name: str) -> str:
        return self._named(self.stage.slurm("squeue", "-h", "--states=all", "-j", self.numbers[name], "-O", FIELDS))

    def rows(self, *words: str) -> set[str]:
        """The lines of squeue, by default for jobs that have not ended."""
        return set(self._named(self.do("squeue", "-h", "-o", ELEMENTS, *words)).splitlines())

    def until(self, name: str, *shown: str) -> None:
        wait_until(lambda: self.state(name) in shown, 30, f"{name} to be {shown}", every=0.2)

    def until_rows(self, words: str, *rows: str) -> None:
        """Wait until squeue shows exactly these lines for the jobs in `words`."""
        wait_until(lambda: self.rows("-j", words) == set(rows), 30, f"{words} to be {rows}", every=0.2)

    def do(self, *words: str) -> str:
        return self.stage.slurm(*(self._numbered(word) for word in words))

    def _named(self, shown: str) -> str:
        for name, number in self.numbers.items():
            shown = re.sub(rf"(?m)(?:^|(?<=:)){number}(?=[_( ])", name, shown)
        return shown.strip()

    def _numbered(self, text: str) -> str:
        for name, number in self.numbers.items():
            text = text.replace(f"<{name}>", number)
        return text

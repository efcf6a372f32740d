"""Checks of a batch script of the user's own, and sbatch's refusals in terms of its lines."""

from __future__ import annotations

import os
import platform
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from clusterctl.launcher.checks.check import Check, fail, warn
from clusterctl.launcher.config.secrets import written_secrets
from clusterctl.launcher.submission.sbatch import SlurmRefused

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from clusterctl.launcher.config import Resolved
    from clusterctl.launcher.config.user_script import UserScript
    from clusterctl.launcher.submission.plan import Plan

_UNKNOWN = re.compile(
    r"(?:unrecognized|ambiguous) option '--(?P<name>[\w-]+)|Invalid directive found in batch script: (?P<word>.*)"
)


def script_rules(
    plan: Plan, resolved: Resolved, folder: Path, environment: Mapping[str, str] = os.environ
) -> Iterator[Check]:
    """What is lost if the script cannot be started by ours, and folders for its output that do not exist."""
    script, typed = resolved.script, resolved.job.resources.sbatch
    if not script or not plan.script:
        return
    if plan.script.lost:
        hint = "logs, why and status then know only what Slurm tells; set CLUSTERCTL_RUNS to another folder"
        if resolved.job.restart.limit:
            hint = "set CLUSTERCTL_RUNS to another folder, or leave restart.limit out"
            yield fail("script", f"restart.limit needs a start that is recorded: {plan.script.lost}", hint)
        yield warn("script", f"its start cannot be recorded: {plan.script.lost}", hint)
    for number, line in enumerate(script.text.split("\n"), 1):
        if found := written_secrets(line):
            message = (
                f"{script.place}:{number}: {', '.join(found)} looks like a secret, for all who may read the script"
            )
            yield warn("secrets", message, "remove it, and export it before you type submit: the script inherits it")
    asked = {one.name: one.value for one in script.asked.values()}
    asked |= {
        name: environment[f"SBATCH_{name.upper()}"] for name in _FILES if environment.get(f"SBATCH_{name.upper()}")
    }
    asked |= typed
    if plan.script.copies_code:  # it is still to be made
        return
    if plan.script.folder and not plan.script.folder.is_dir():
        hint = f"name a folder of {platform.node()}, or leave it out, to start in a copy of the current folder"
        yield fail("chdir", f"--chdir: no such folder: {plan.script.folder}", hint)
    start = folder / asked.get("chdir", environment.get("SBATCH_CHDIR", ""))
    for name in _FILES:
        written = asked.get(name, "").rpartition("/")[0]
        if not written or "%" in written:
            continue
        place = Path(os.path.normpath(start / written))
        if place.is_dir():
            continue
        message = f"--{name}: no such folder: {place}"
        if place.parent.is_dir() or resolved.cluster.nodes_are_here:
            hint = f"Slurm would end the job without a word: mkdir -p {shlex.quote(str(place))}"
            yield fail("output", message, hint)
        else:
            yield warn("output", message, "if the nodes do not have it either, Slurm ends the job without a word")


_FILES = ("output", "error")


def explain_refusal(refused: SlurmRefused, resolved: Resolved, script: UserScript) -> SlurmRefused:
    """sbatch's own words, with the line of the script that it refuses, if one is named."""
    hint, match = "correct the script; sbatch(1) lists its options", _UNKNOWN.search(refused.words)
    if "job array" in refused.words:
        indices = "indices such as 0-9 or 1,3,7-15:2, below MaxArraySize of `scontrol show config`"
        hint = f"correct {resolved.array_typed}: {indices}"
    if match:
        wanted = match["name"] or match["word"].split()[0]
        lines = enumerate(script.text.split("\n"), 1)
        found = [number for number, line in lines if line.startswith("#SBATCH") and wanted in line]
        hint = f"remove it from {script.place}:{found[0]}" if found else hint
    return SlurmRefused("sbatch refused the job", refused.words, hint)

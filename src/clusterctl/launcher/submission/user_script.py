"""A user's batch script as a run: its frozen copy, the files that start it, and sbatch's command line for it.

script.sh       the script as submitted, but for its first line: `#!RUN/start INTERPRETER ARGUMENT`
start           shared/node/script_start.py, which records the start and becomes the interpreter
bin/srun        shared/node/script_srun.py, the first srun on the script's PATH, unless `see_ranks` is false
bin/task        shared/node/script_task.py, what it starts before each task

An array has one directory like that, `.sweeps/SWEEP/0`, from which `start` makes that of each element. It has besides:

begun/          an empty file for each element that has its directory

Unlike every other job, it inherits the environment of `submit`, as with sbatch. Sent from another machine, it gets that
of a login shell, and starts in the folder that it names or in `work`, a copy of the one in which the command was typed.
"""

from __future__ import annotations

import os
import platform
import re
from dataclasses import dataclass
from pathlib import Path, PurePath
from shutil import copytree
from typing import TYPE_CHECKING

import clusterctl
from clusterctl.launcher.config.client_data import client_data
from clusterctl.launcher.config.script_resolution import inherited
from clusterctl.launcher.config.user_script import UserScript
from clusterctl.launcher.slurm.queue import element_id
from clusterctl.shared.errors import ConfigError
from clusterctl.shared.record.files import exists, read_whole, write_text
from clusterctl.shared.record.ownership import make_private
from clusterctl.shared.spec import Resources

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from clusterctl.launcher.config import Resolved
    from clusterctl.shared.record.layout import RunDir

Option = tuple[str, str | int | None]
"""An option of sbatch by its long name, and its value."""

_NODE = Path(clusterctl.__file__).parent / "shared/node"
_LONGEST_OF_OLD, _LONGEST = 127, 255  # bytes of a first line that the kernel reads: before 5.1, and since
_GIVEN = ("--set", "cluster ", "environment ")  # the origins of values that sbatch does not find in the script
# Other jobs always have these options: for a script, they need their keys.
_ALWAYS = {
    "nodes": "nodes",
    "ntasks-per-node": "tasks_per_node",
    "cpus-per-task": "cpus_per_task",
    "time": "time",
    **dict.fromkeys(("requeue", "no-requeue"), "requeue"),
}


@dataclass(frozen=True)
class ScriptPlan:
    """How a script runs. `lost` is why it runs as plain sbatch would, without its start being recorded."""

    script: UserScript
    options: tuple[Option, ...]
    python: str
    lost: str
    environment: Mapping[str, str]  # added to the one of `submit`
    sees_ranks: bool = True
    folder: Path | None = None  # where sbatch is called, for one that was sent from another machine
    copies_code: bool = False  # its folder is the run's copy of the code

    def job_id(self, answer: str) -> str:
        """The job of a run from sbatch's answer: an element of an array is submitted again as an array of itself."""
        index = dict(self.options).get("array")
        return element_id(answer, int(index)) if index else answer

    def frozen(self, run: RunDir) -> str:
        """The copy of the script that runs."""
        first, newline, rest = self.script.text.partition("\n")
        return self.script.text if self.lost else f"#!{run.start} {first[2:].strip()}{newline}{rest}"

    def words(self, run: RunDir) -> list[str]:
        """sbatch's options, the script and its arguments."""
        return ["--parsable", *self.options_typed, str(run.script), *self.script.arguments]

    @property
    def options_typed(self) -> list[str]:
        return [f"--{name}" + ("" if value is None else f"={value}") for name, value in self.options]

    def write(self, run: RunDir) -> None:
        """Write what starts the script, and its folder if that is a copy. Raises OSError."""
        if self.copies_code and not exists(run.work):
            copytree(run.project, run.work, symlinks=True)
            for path in (run.work, *run.work.rglob("*")):  # the copy that runs share is read-only
                if not path.is_symlink():
                    path.chmod(path.stat().st_mode | 0o200)
            asked = {one.name: one.value for one in self.script.asked.values()} | dict(self.options)
            for folder in (PurePath(str(asked.get(name) or "")).parent for name in ("output", "error")):
                if not folder.is_absolute() and "%" not in str(folder):  # an empty folder is not sent
                    (run.work / folder).mkdir(parents=True, exist_ok=True)
        if self.lost:
            return
        programs = {run.start: "script_start.py"}
        if self.sees_ranks:
            make_private(run.own_srun.parent)
            programs |= {run.own_srun: "script_srun.py", run.own_srun.with_name("task"): "script_task.py"}
        for path, source in programs.items():
            text = (_NODE / source).read_text(encoding="utf-8")
            # The kernel passes all that follows the interpreter as one word, so there is room for no second one.
            write_text(path, f"#!{self.python} -IS\n{text}", mode=0o700)


def given_to_sbatch(resolved: Resolved) -> tuple[Resources, frozenset[str]]:
    """What comes from the command line, the cluster file or SBATCH_*, and not from the script's lines; and its keys."""
    found = {key.removeprefix("resources."): origin for key, origin in resolved.origins.items()}
    given = frozenset(key.partition(".")[0] for key, origin in found.items() if origin.startswith(_GIVEN))
    values = vars(resolved.job.resources)
    return Resources(**{name: values[name] for name in values if name in given}), given


def plan_script(
    resolved: Resolved, run: RunDir, requested: Iterable[Option], given: frozenset[str], interpreter: str
) -> ScriptPlan:
    """Decide how the script of `resolved` runs, with the options `requested` for the keys `given`."""
    script = resolved.script
    assert script is not None
    options = [(name, value) for name, value in requested if name not in _ALWAYS or _ALWAYS[name] in given]
    if resolved.origins.get("name", "").startswith("--set"):
        options.append(("job-name", resolved.job.name))
    elif script.job_name({}) == script.name:  # that of the copy would be its own
        options.append(("job-name", inherited().get("SBATCH_JOB_NAME") or script.name))
    if resolved.job.restart.limit and "requeue" not in script.asked and "requeue" not in dict(options):
        options.append(("requeue", None))
    if resolved.array and "array" not in dict(options):  # it is in the lines, but this may be one element alone
        options.append(("array", resolved.array))
    folder = None
    if resolved.job.code:
        folder = run.work
        options.append(("chdir", str(folder)))
    elif client_data() and (chdir := dict(options).get("chdir") or script.asked["chdir"].value):
        folder = Path(str(chdir))
    python = resolved.cluster.python or interpreter
    lost, environment, see_ranks = _lost(script, run, python), dict(resolved.job.env), resolved.job.see_ranks
    return ScriptPlan(
        script, tuple(options), python, lost, environment, see_ranks, folder, copies_code=bool(resolved.job.code)
    )


def _lost(script: UserScript, run: RunDir, python: str) -> str:
    """Why the kernel would not start the script through ours; empty if it would."""
    line = f"#!{run.start} {script.text.partition(chr(10))[0][2:].strip()}"
    version = tuple(map(int, re.findall(r"\d+", platform.release())[:2]))
    most = _LONGEST if version >= (5, 1) else _LONGEST_OF_OLD
    if re.search(r"\s", str(run.path)):
        return f"the run's path contains a space: {run.path}"
    if len(os.fsencode(line)) > most or len(os.fsencode(python)) + len("#! -IS") > most:
        return f"the run's path is too long for a #! line: {run.path}"
    if not python.startswith("/") or re.search(r"\s", python):
        return f"not an absolute path without spaces: {python}"
    place = next(folder for folder in (run.path, *run.path.parents) if folder.is_dir())
    return f"mounted noexec: {run.path.parent}" if os.statvfs(place).f_flag & os.ST_NOEXEC else ""


def read_frozen(run: RunDir, argv: tuple[str, ...]) -> UserScript:
    """The script of an earlier run, whose record has `argv`. Raises ConfigError."""
    try:
        text = read_whole(run.script).decode(errors="surrogateescape")
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read {run.script}: {error}", "submit the script again") from error
    begin = f"#!{run.start} "
    return UserScript(argv[0], f"#!{text.removeprefix(begin)}" if text.startswith(begin) else text, argv[1:])

"""Batch scripts see the same with `clusterctl submit` as with sbatch: `make compare-scripts` runs all of them.

Each is run by plain sbatch and by clusterctl in one folder: `./probe` records what the script and its tasks see. A
third, plain run tells a difference from noise, such as the order of messages.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from support.scenario import CLUSTERCTL, Stage, wait_until

from clusterctl.launcher.emulator.install import ensure_stand_ins
from clusterctl.shared.record.fields import read_fields
from clusterctl.shared.record.layout import RunDir, SweepDir
from clusterctl.shared.spec import Emulator

CORPUS = Path(__file__).parents[1] / "support/batch_scripts.txt"
EVERY = 10  # one of so many is in `make test`; all are in `make test-long`
ON_ALL_BACK_ENDS = True
PROBE = """#!/usr/bin/python3 -IS
import json, os, sys
def target(number):
    path = os.readlink(f"/proc/self/fd/{number}")
    return path.partition(":")[0] if path.startswith(("pipe:", "socket:")) else path
entries = (entry.partition(b"=") for entry in open("/proc/self/environ", "rb").read().split(b"\\0"))
text = lambda content: content.decode(errors="replace")
environment = {text(name): text(value) for name, equals, value in entries if equals}
seen = {"argv": sys.argv, "environment": environment, "cwd": os.getcwd(), "streams": [target(fd) for fd in range(3)]}
with open(os.path.join("@FOLDER@", "probes.jsonl"), "a") as file:
    file.write(json.dumps(seen) + "\\n")
"""
THROUGH = '#!/bin/sh\nwhile [ "$1" != -- ]; do shift; done\nshift\nexec "$@"\n'
FILES = {
    "lib.sh": "say_hello() { echo hello; }\n",
    "modules.sh": "module() { export LOADED=$2; }\nconda() { export CONDA_DEFAULT_ENV=$2; }\n",
    "venv/bin/activate": "export VIRTUAL_ENV=$PWD/venv\nPATH=$VIRTUAL_ENV/bin:$PATH\n",
    "venv/bin/tool": "#!/bin/sh\n",
    "sub/nothing": "",
    **{f"fake/{name}": THROUGH for name in ("uv", "conda", "apptainer", "mpirun", "accelerate")},
}
PLAIN = ("lib.sh", "modules.sh", "venv/bin/activate")  # not executable
ENDED = re.compile(r"JobState=(COMPLETED|FAILED|CANCELLED|TIMEOUT|NODE_FAIL|OUT_OF_MEMORY)\b")
# What differs between two jobs.
VARYING = re.compile(
    r"SLURM_(?:TASK_PID|JOB_START_TIME|JOB_END_TIME|STEP_LAUNCHER_PORT|SRUN_COMM_PORT|SRUN_COMM_HOST|STEPMGR)|SLURMD_DEBUG"
)


class Script(NamedTuple):
    name: str
    arguments: list[str]
    text: bytes


def scripts() -> list[Script]:
    found = []
    for section in CORPUS.read_text().split("=== ")[1:]:
        head, _, text = section.partition("\n")
        name, *arguments = shlex.split(head)
        content = text.replace("§", "\udce9").encode(errors="surrogateescape")
        found.append(Script(name, arguments, content.rstrip(b"\n") if "newline" in name else content))
    return found


SCRIPTS = scripts()


def marked(place: int, script: Script) -> Any:
    return pytest.param(script, id=script.name, marks=[] if place % EVERY == 0 else [pytest.mark.long])


def prepare(stage: Stage, script: Script) -> None:
    shutil.rmtree(stage.folder)
    stage.folder.mkdir()
    for name, text in {**FILES, "probe": PROBE.replace("@FOLDER@", str(stage.folder))}.items():
        path = stage.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o644 if name in PLAIN else 0o755)
    (stage.folder / "job.sbatch").write_bytes(script.text)


class Seen(NamedTuple):
    """What a job left, with its own numbers replaced."""

    code: str
    probes: list[str]
    files: dict[str, list[str]]

    @property
    def lines(self) -> list[str]:
        """One line for everything that was seen."""
        facts = [f"code {self.code}"]
        for number, probe in enumerate(self.probes):
            seen = json.loads(probe)
            environment = seen.pop("environment")
            facts += [f"probe {number}: {seen}", *(f"probe {number}: {pair}" for pair in environment.items())]
        return [*facts, *(f"{name}: {line}" for name, lines in self.files.items() for line in ("", *lines))]


def run(stage: Stage, script: Script, command: list[str]) -> Seen:
    prepare(stage, script)
    done = subprocess.run(
        command, cwd=stage.folder, env=stage.environment, capture_output=True, text=True, errors="replace", check=False
    )
    assert done.returncode == 0, done.stderr
    name = done.stdout.split(";")[0].strip()
    array, directory = SweepDir.of(stage.runs, name).array(0), RunDir(stage.runs / name)
    is_ours = not name.isdigit()
    submission = array.submission_json if array.path.exists() else directory.submission_json
    asked = read_fields(submission).text("job_id") if is_ours else name

    def ended() -> str:
        text = stage.slurm("scontrol", "show", "job", asked)
        return text if len(ENDED.findall(text)) == text.count("JobState=") else ""

    shown = wait_until(ended, 90)
    codes = sorted(re.findall(r"ExitCode=(\S+)", shown))
    job = "(?:" + "|".join(re.findall(r"\bJobId=(\d+)", shown)) + ")"  # one, or those of an array's elements
    folders = {str(path / "bin") for path in stage.runs.glob(f"{name}*")}
    numbers = re.compile(
        rf"(?<=slurm-){job}(?=\.out|_)|(?<=-)0*{job}(?=\.(?:out|err)|_)|(?<=jobs/){job}\b|(?<=/job)0*{job}\b"
        rf'|(?<=JOBID": "){job}|(?<=JOB_ID": "){job}|(?<=StepId=){job}|(?<=STEP ){job}|(?<=JOB ){job}|(?<=job ){job}\b'
    )

    def same(text: str) -> str:
        return numbers.sub("<job>", text)

    probes = []
    log = stage.folder / "probes.jsonl"
    for line in log.read_text().splitlines() if log.exists() else ():
        seen = json.loads(line)
        variables = seen["environment"]
        of_task = "SLURM_STEP_ID" in variables
        for variable in [name for name in variables if VARYING.fullmatch(name)]:
            del variables[variable]
        if is_ours and not of_task:  # the only traces in the batch script
            path = variables.get("PATH", "").split(":")
            variables["PATH"] = ":".join(part for part in path if part not in folders)
        assert "CLUSTERCTL_RUN_DIR" not in variables
        probe = same(_quiet(json.dumps(seen, sort_keys=True)))
        if "SLURM_ARRAY_TASK_ID" in variables:  # each element runs where there is room at that moment
            probe = _with_numbered_nodes(probe)
        probes.append(probe)
    left = (
        path
        for path in stage.folder.rglob("*")
        if path.is_file() and path.name not in (*FILES, "probes.jsonl", "probe")
    )
    files = {}
    for path in left:
        relative = str(path.relative_to(stage.folder))
        if relative not in FILES:
            lines = path.read_bytes().decode(errors="replace").splitlines()
            files[same(relative)] = sorted(same(_quiet(line)) for line in lines)
    return Seen(" ".join(codes), sorted(probes), files)


def _with_numbered_nodes(text: str) -> str:
    """Names and addresses of the sandbox's nodes replaced by numbers, in the order in which the nodes appear."""
    places: dict[str, int] = {}
    node = re.compile(r"\bnode(\d)\b|\b10\.\d+\.\d+\.(\d)\b")
    return node.sub(lambda found: f"<node {places.setdefault(found[1] or found[2], len(places))}>", text)


def _quiet(line: str) -> str:
    """A line without what differs between two runs: times, bash's numbers of processes, and names in slurmstepd's."""
    line = re.sub(r"slurmstepd-\w+: ", "slurmstepd: ", line)  # of a Slurm built for several slurmd on a machine
    return re.sub(r"\d{4}-\d\d-\d\dT[\d:]+|(?<=line \d: ) *\d+|\d+m[\d.]+s|tmp\.\w+", "<varies>", line)


@pytest.mark.parametrize("script", [marked(place, script) for place, script in enumerate(SCRIPTS)])
def test_a_script_sees_what_it_would_see_with_sbatch(stage: Stage, script: Script) -> None:
    stage.environment["MINE"] = "inherited as sbatch inherits it"
    plainly = [_sbatch(stage), "--parsable", "job.sbatch", *script.arguments]
    ours = [CLUSTERCTL, "submit", "./job.sbatch", "--cluster", stage.cluster, "--", *script.arguments]
    first, second = run(stage, script, plainly), run(stage, script, ours)
    if first != second:
        third = run(stage, script, plainly)
        noise = {*first.lines} ^ {*third.lines}
        differences = [f"clusterctl: {line}" for line in sorted({*second.lines} - {*third.lines} - noise)]
        differences += [f"sbatch: {line}" for line in sorted({*third.lines} - {*second.lines} - noise)]
        assert not differences, "\n".join(differences)


def _sbatch(stage: Stage) -> str:
    if stage.cluster != "local":
        return "sbatch"
    return str(ensure_stand_ins(Path(stage.environment["XDG_STATE_HOME"]) / "clusterctl", Emulator()) / "sbatch")


def test_the_corpus_is_large_enough() -> None:
    assert len(SCRIPTS) >= 80
    assert len({script.name for script in SCRIPTS}) == len(SCRIPTS)

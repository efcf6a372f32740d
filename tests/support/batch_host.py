"""A host that runs batch scripts with fake Slurm commands, and obstacles that others may put in a submission's way."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import Any

import clusterctl
from clusterctl.launcher.config import Resolved
from clusterctl.launcher.submission.plan import make_plan
from clusterctl.launcher.submission.script import part, render
from clusterctl.shared.record.layout import RunDir
from clusterctl.shared.spec import Cluster, CommandTrain, Container, Job, Resources
from clusterctl.shared.spec.job import Restart

SOURCE = Path(clusterctl.__file__).parents[1]
CLUSTER, NO_CONTAINER = Cluster(name="c"), Container()
ALL_DONE = 'for r in 0 1; do touch "$attempt/marks/0000$r.done"; done\n'
ONE_KILLED = 'touch "$attempt/marks/00000.ended" "$attempt/marks/00001.running"\n'
NEWER = 'mkdir "$CLUSTERCTL_RUN_DIR/attempts/1" && echo \'{"attempt": 1, "job_id": "12"}\' >"$_/host.json"\n'
CHECKPOINT = 'mkdir -p "$CLUSTERCTL_RUN_DIR/checkpoints/$CLUSTERCTL_ATTEMPT-7"\n'


class Host:
    """A node: a run directory, and an srun whose body each test supplies."""

    def __init__(
        self,
        folder: Path,
        nodes: int = 1,
        tasks_per_node: int = 2,
        cluster: Cluster = CLUSTER,
        container: Container = NO_CONTAINER,
        restart: Restart = Restart(where="queue", by="requeue"),  # noqa: B008 - it cannot change
        spare_nodes: int = 0,
    ) -> None:
        self.run = RunDir(folder / "it's a run-20260102-030405-abcd")
        self.run.attempts_folder.mkdir(parents=True)
        (folder / "code" / "lib").mkdir(parents=True)
        self.run.run_json.write_text("{}")
        self.project = folder / "code" / "project"
        self.project.mkdir(parents=True)
        self.run.code.symlink_to(Path("..", "code"))
        job = Job(
            name="x",
            workload="command",
            argv=("true",),
            resources=Resources(
                nodes=nodes, spare_nodes=spare_nodes, tasks_per_node=tasks_per_node, gpus_per_node=0, warning=0
            ),
            container=container,
            restart=restart,
            train=CommandTrain(),
        )
        resolved = Resolved(job, cluster, {}, folder)
        plan = make_plan(resolved, self.run, folder / "code", "0", "python")
        self.script = self.run.path / "slurm_script"  # the name of slurmd's copy
        self.script.write_text(render(plan))
        self.run.script.write_text(self.script.read_text())
        self.srun = folder / "bin" / "srun"
        self.srun.parent.mkdir()
        self.asked = folder / "asked"  # the calls of scontrol
        self.steps = folder / "steps"  # the last argument of each srun
        self.ends = folder / "ends"  # the calls of leftovers.py: earlier attempts than these have ended
        self.scontrol = ""  # the body of scontrol
        self.others: dict[str, str] = {}  # those of other commands of Slurm
        self.environment: dict[str, str] = {}  # of the submitter's shell
        self.job = "12"

    def start(self, srun: str, restarts: int = 0) -> subprocess.Popen[bytes]:
        steps, ends = quote(str(self.steps)), quote(str(self.ends))
        prologue = f'#!/bin/bash\necho "${{!#}}" >>{steps}\n[ "${{!#}}" != true ] || exit 0\n'
        prologue = prologue.replace(
            "echo", f'case "$*" in *leftovers.py*) echo "${{!#}}" >>{ends}; exit 0 ;; esac\necho', 1
        )
        prologue += f"attempt={quote(str(self.run.attempts_folder))}/$CLUSTERCTL_ATTEMPT\n"
        self.srun.write_text(prologue + srun)
        self.srun.chmod(0o755)
        for name, text in {"scontrol": self.scontrol, **self.others}.items():
            command = self.srun.with_name(name)
            called = "" if name == "scontrol" else f"{name} "
            command.write_text(f'#!/bin/bash\necho "{called}$@" >>{quote(str(self.asked))}\n{text}\n')
            command.chmod(0o755)
        environment = self.environment | {
            "PATH": f"{self.srun.parent}:{os.environ['PATH']}",
            "SLURM_JOB_ID": self.job,
            "SLURM_JOB_NODELIST": "n[1-2]",
            "SLURMD_NODENAME": "n1",
            "SLURM_RESTART_COUNT": str(restarts),
        }
        return subprocess.Popen(["bash", self.script], env=environment, stderr=subprocess.PIPE, cwd=self.run.path)

    def call(self, srun: str, restarts: int = 0) -> int:
        process = self.start(srun, restarts)
        process.communicate()
        return process.returncode

    @property
    def requeues(self) -> list[str]:
        asked = self.asked.read_text().splitlines() if self.asked.exists() else []
        return [line for line in asked if line.startswith("requeue")]

    def host(self, attempt: int = 0) -> dict[str, Any]:
        return dict(json.loads(self.run.attempt(attempt).host_json.read_text()))


def asks(host: Host, attempt: int, **details: Any) -> str:
    """The commands of a task that requests a restart."""
    arguments = f"RunDir(Path({str(host.run.path)!r})).attempt({attempt}), 'warned', **{details!r}"
    imports = "from pathlib import Path; from clusterctl.shared.record.layout import RunDir"
    program = f"{imports}; from clusterctl.shared.record.marks import request_restart; request_restart({arguments})"
    return f"PYTHONPATH={quote(str(SOURCE))} {quote(sys.executable)} -c {quote(program)}\n"


# Exported shell functions and options, and an index that git refuses.


def hostile_shell(called: Path, *parts: str) -> dict[str, str]:
    """Variables that shadow every command in these parts of a script; each call of a shadow is logged in `called`."""
    words = {word for name in parts for word in re.findall(r"[a-z]+|\[|:", part(name))}
    builtins = subprocess.run(["bash", "-c", "compgen -b"], capture_output=True, text=True, check=True).stdout.split()
    commands = {word for word in words if word in builtins or shutil.which(word)} - {"builtin"}
    shadow = f'() {{ /bin/echo "${{FUNCNAME[0]}}" >>{quote(str(called))}; /bin/false; }}'
    return {
        **{f"BASH_FUNC_{command}%%": shadow for command in sorted({*commands, "srun", "scontrol"})},
        "SHELLOPTS": "errexit:noclobber:noglob:nounset:pipefail:posix",
        "BASHOPTS": "failglob",
        "GLOBIGNORE": "*",
    }


_OBJECT = b"blob 9\0print(1)\n"


def make_repository(folder: Path) -> None:
    """Like `git init`, in less time."""
    for name in ("objects", "refs"):
        (folder / ".git" / name).mkdir(parents=True)
    (folder / ".git" / "HEAD").write_text("ref: refs/heads/main\n")


def write_index(repository: Path, names: Sequence[str], submodules: Mapping[str, str] | None = None) -> None:
    """Replace the index of `repository`: files with these names, all with one content, and commits of submodules."""
    blob = hashlib.sha1(_OBJECT).hexdigest()
    place = repository / ".git" / "objects" / blob[:2] / blob[2:]
    if not place.exists():
        place.parent.mkdir(exist_ok=True)
        place.write_bytes(zlib.compress(_OBJECT))
    entries = {os.fsencode(name): (0o100644, blob) for name in names}
    entries |= {os.fsencode(name): (0o160000, commit) for name, commit in (submodules or {}).items()}
    content = b"DIRC" + struct.pack(">II", 2, len(entries))
    for name, (mode, digest) in sorted(entries.items()):
        entry = struct.pack(">10I", 0, 0, 0, 0, 0, 0, mode, 0, 0, 0) + bytes.fromhex(digest)
        entry += struct.pack(">H", min(len(name), 0xFFF)) + name
        content += entry + b"\0" * (8 - len(entry) % 8)
    (repository / ".git" / "index").write_bytes(content + hashlib.sha1(content).digest())

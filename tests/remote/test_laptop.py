"""A laptop with macOS: commands of a cluster with `host` work without /proc and Linux's own calls.

Runs on Linux with these taken away (`support/mac`), and on macOS as it is.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.far import FarStage, made, staged
from support.scenario import CLUSTERCTL

from clusterctl.launcher import cli
from clusterctl.shared.record.layout import RunDir

MAC = Path(__file__).parents[1] / "support" / "mac"
PROGRAM = """
import time
import clusterctl.program
clusterctl.program.log(step=1, loss=0.5)
print("trained", flush=True)
time.sleep(600)
"""


def on_a_mac(*words: str, environment: dict[str, str], cwd: Path) -> subprocess.CompletedProcess[str]:
    given = environment if sys.platform == "darwin" else environment | {"PYTHONPATH": str(MAC)}
    return subprocess.run(
        [CLUSTERCTL, *words],
        cwd=cwd,
        env=given,
        stdin=subprocess.DEVNULL,  # as under cron: a device, which macOS's kqueue refuses
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.parametrize("name", ["local", "sandbox"])
@pytest.mark.parametrize("words", [("submit", "cora"), ("status",)])
def test_clusters_of_this_machine_are_refused_by_name(words: tuple[str, ...], name: str, tmp_path: Path) -> None:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("CLUSTERCTL_", "XDG_"))}
    done = on_a_mac(*words, "--cluster", name, environment=kept | {"HOME": str(tmp_path)}, cwd=tmp_path)
    assert done.returncode == 2, done
    assert done.stderr.startswith(f"error: cluster {name}: this machine runs macOS, and jobs run on Linux only\nhint: ")
    assert not [*tmp_path.iterdir()]


@pytest.fixture
def stage(far_shared: Path, tmp_path: Path) -> Iterator[FarStage]:
    with made(far_shared) as far, staged(far, tmp_path) as stage:
        yield stage


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="the login node must be Linux")
def test_commands_work_from_a_laptop_without_proc(stage: FarStage, tmp_path: Path) -> None:
    (stage.folder / ".git").mkdir()  # not a real repository: the project is copied as it is
    (stage.folder / "train.py").write_text(PROGRAM)

    def call(*words: str, code: int = 0) -> str:
        done = on_a_mac(*words, environment=stage.environment | {"CLUSTERCTL_CLUSTER": "far"}, cwd=stage.folder)
        assert done.returncode == code, (words, done)
        assert "Traceback" not in done.stderr
        return done.stdout

    run = call("submit", "--nodes", "2", "--", "python", "train.py").strip()
    stage.wait_for_state(RunDir(stage.runs / run), "training")
    assert run in call("status")
    assert json.loads(call("status", run, "-o", "json"))["runs"][0]["id"] == run
    assert "trained" in call("logs", run)
    assert "node2" in call("attach", run, "--rank", "1", "--", "printenv", "SLURMD_NODENAME")
    shown = (
        ("why", run),
        ("monitor", run, "--once"),
        ("report", run),
        ("nodes",),
        ("config", "show", "cora"),
        ("usage",),
    )
    for words in shown:
        call(*words)
    assert (stage.folder / f"{run}.html").is_file()


def test_completion_works_in_the_bash_of_macos(tmp_path: Path) -> None:
    """Bash 3.2 has neither mapfile nor compopt nor `complete -o nosort`: all three are taken away here."""
    (tmp_path / "clusterctl").write_text("#!/bin/sh\nprintf 'status\\nsubmit\\n'\n")
    (tmp_path / "clusterctl").chmod(0o755)
    script = Path(cli.__file__).with_name("completion.bash").read_text()
    program = f"""
enable -n mapfile readarray compopt
complete() {{ case " $* " in *' nosort '*) return 1;; esac; builtin complete "$@"; }}
{script}
COMP_LINE='clusterctl s' COMP_POINT=12
_clusterctl clusterctl s clusterctl
echo "${{COMPREPLY[@]}}"
complete -p clusterctl
"""
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "--norc", "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout == "status submit\ncomplete -o bashdefault -F _clusterctl clusterctl\n"
    assert done.stderr == ""

"""Commands typed here and run over ssh on a login node with its own home directory."""

from __future__ import annotations

import json
import os
import platform
import pty
import re
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.error import URLError
from urllib.request import HTTPCookieProcessor, build_opener

import pytest
from support.far import FarStage, made, staged
from support.hints import commands_in
from support.images import make_thin
from support.recorded import begun
from support.scenario import CLUSTERCTL, wait_until

import clusterctl
from clusterctl.launcher.config.suggestions import OF_CLUSTERS, OF_RUNS
from clusterctl.shared.record.layout import RunDir

SHAPE = "[resources]\nnodes = 2\n"
BOTH = ["emulator", pytest.param("sandbox", marks=pytest.mark.long)]


@pytest.fixture(params=BOTH)
def stage(request: pytest.FixtureRequest, far_shared: Path, tmp_path: Path) -> Iterator[FarStage]:
    variables = {}
    if request.param == "sandbox":
        sandbox = request.getfixturevalue("sandbox").environment
        variables = {name: sandbox[name] for name in ("XDG_STATE_HOME", "SLURM_CONF")}
    with made(far_shared, variables=variables) as far, staged(far, tmp_path, kind=request.param) as stage:
        yield stage


def program(text: str, more: str = SHAPE) -> str:
    return f'workload = "command"\nargv = ["python", "-c", {json.dumps(text)}]\n{more}'


def git(folder: Path, *words: str) -> None:
    identity = ("-c", "user.name=somebody", "-c", "user.email=somebody@example.org")
    subprocess.run(["git", "-C", str(folder), *identity, *words], check=True, capture_output=True)


def write_project(folder: Path) -> None:
    """A git repository with a modified file, an untracked one and an ignored one."""
    (folder / "helper.py").write_text("GREETING = 'committed'\n")
    (folder / ".gitignore").write_text("ignored.bin\n")
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "First")
    (folder / "helper.py").write_text("GREETING = 'changed'\n")
    (folder / "package").mkdir()
    (folder / "package" / "new.py").write_text("NAME = 'new'\n")
    (folder / "ignored.bin").write_bytes(os.urandom(2**20))


def test_a_job_is_submitted_with_its_modified_project_and_inspected_from_here(stage: FarStage) -> None:
    write_project(stage.folder)
    text = """
import helper, os, package.new
print(helper.GREETING, package.new.NAME, os.environ["OWN"], os.path.realpath(helper.__file__))
"""
    job = stage.write_job("own", program(text, f'{SHAPE}[env]\nOWN = "it\'s"\n'))
    submitted = stage.do("submit", job, "--wait", "--timeout", "250")
    run = RunDir(stage.runs / submitted.strip())
    words = stage.log(run, 1).splitlines()[-1].split(" ", 3)
    assert words[:3] == ["changed", "new", "it's"]
    assert words[3].startswith(str(stage.runs))
    assert not list(stage.runs.rglob("ignored.bin"))
    record = json.loads(run.run_json.read_text())
    assert record["git"]["dirty"]
    assert "+GREETING = 'changed'" in run.git_patch.read_text()
    assert stage.status(run)["stage"] == "finished"
    assert "changed new it's" in stage.do("logs", run.id, "--rank", "1")
    assert "finished" in stage.do("why", run.id)
    assert run.id in stage.do("monitor", "--once")
    assert stage.do("report", run.id) == f"{run.id}.html\n"
    assert run.id in (stage.folder / f"{run.id}.html").read_text()
    assert stage.do("export", "@last") == "last.tar.gz\n"
    with tarfile.open(stage.folder / "last.tar.gz") as archive:
        assert any(name.endswith("run.json") for name in archive.getnames())


@pytest.mark.long
def test_a_running_run_is_followed_attached_to_and_cancelled(stage: FarStage) -> None:
    text = "import time; print('up', flush=True); time.sleep(600)"
    follow = stage.begin("submit", stage.write_job("long", program(text)), "--cluster", "far", "--follow")
    run = wait_until(lambda: next((RunDir(p) for p in stage.runs.glob("long-*")), None))
    wait_until(lambda: len(begun(run.attempt(0))) == 2)
    inside = stage.do("attach", run.id, "--rank", "1", "--", "printenv", "CLUSTERCTL_RUN_DIR")
    assert inside.strip() == str(run.path)
    wait_until(lambda: run.attempt(0).log(0).is_file() and "up" in stage.log(run, 0))
    os.killpg(follow.pid, signal.SIGINT)
    printed, errors = follow.communicate(timeout=60)
    assert (follow.returncode, printed.strip()) == (130, run.id)
    assert "the run continues" in errors
    assert stage.status(run)["stage"] not in ("cancelled", "failed", "lost")
    stage.do("cancel", run.id)
    stage.wait_for_state(run, "cancelled")


@pytest.mark.long
def test_a_job_that_clusterctl_did_not_submit_is_explained_and_cancelled_from_here(
    stage: FarStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def others() -> list[str]:
        return [one["job_id"] for one in json.loads(stage.do("status", "--all-jobs", "-o", "json"))["jobs"]]

    stage.do("nodes")
    before = others()  # what earlier tests have left in Slurm's memory
    script = stage.folder / "own.sh"
    script.write_text("#!/bin/bash\necho begun\nsrun -n1 python3 -c 'raise KeyError(7)'\nsleep 600\n")
    job = stage.slurm("sbatch", "--parsable", f"--chdir={stage.folder}", "-t5", str(script)).strip()
    wait_until(lambda: "KeyError" in stage.do("logs", job), what="the task to fail")
    found = json.loads(stage.do("why", job, "-o", "json"))
    assert (found["id"], found["run_stage"], found["cause"]) == (job, "running", "its output shows: KeyError: 7")
    assert [one for one in others() if one not in before] == [job]
    for name, value in stage.environment.items():
        monkeypatch.setenv(name, value)
    assert clusterctl.why(job, cluster="far").headline.cause == found["cause"]
    assert [one.job_id for one in clusterctl.jobs(cluster="far") if one.job_id not in before] == [job]
    stage.do("cancel", job)
    wait_until(lambda: f"{job} cancelled" in stage.do("why", job), what="the job to end")
    (stage.folder / "here.out").write_text('Traceback (most recent call last):\n  File "x"\nKeyError: 8\n')
    assert "KeyError: 8" in stage.do("why", "here.out")  # a file of this machine


def test_errors_on_the_remote_machine_are_reported_here(stage: FarStage) -> None:
    assert "error: no run" in stage.do("status", "nowhere", code=5)
    assert "no such job file" in stage.do("submit", "./nowhere.toml", code=5)
    data = stage.write_job("relative", f'workload = "reddit"\n{SHAPE}[data]\nroot = "./data"\n')
    assert "is a path on this machine, but the run will be on far" in stage.do("submit", data, code=3)
    assert not stage.runs.exists() or not list(stage.runs.glob("[!.]*"))


@pytest.mark.long
def test_a_confirmation_is_asked_and_answered_here(stage: FarStage) -> None:
    run = RunDir(stage.runs / stage.do("submit", stage.write_job("short", program("print(1)")), "--wait").strip())
    assert "TO REMOVE" in stage.do("clean", "--older-than", "0d", answer="n\n")
    assert run.path.is_dir()
    stage.do("clean", "--older-than", "0d", answer="y\n")
    assert not run.path.exists()


@pytest.mark.long
def test_a_program_without_a_job_file_is_rerun_and_compared(stage: FarStage) -> None:
    (stage.folder / "train.py").write_text("import sys; print(sys.argv[1:])")
    words = ("submit", "--nodes", "1", "--name", "own", "--wait", "--", "python", "train.py", "--lr", "it's 1")
    first = RunDir(stage.runs / stage.do(*words).strip())
    assert "['--lr', \"it's 1\"]" in stage.log(first, 0)
    (stage.folder / "train.py").write_text("raise SystemExit('changed')")
    again = RunDir(stage.runs / stage.do("rerun", first.id, "--set", "env.MORE=1", "--wait").strip())
    assert "['--lr', \"it's 1\"]" in stage.log(again, 0)
    assert "env.MORE" in stage.do("diff", first.id, again.id)
    changed = stage.do(*words, code=1)
    assert "failed" in changed
    assert "changed" in stage.do("why", "own")
    assert "own" in stage.do("status")
    assert "RUNS" in stage.do("usage", "--since", "1d")


@pytest.mark.long
def test_stages_and_sweeps_are_submitted_with_one_command(stage: FarStage) -> None:
    job = program("import os; print(os.environ.get('VALUE'))", "[resources]\nnodes = 1\n[env]\nVALUE = '0'\n")
    stage.write_job("chain", f'{job}[[stage]]\nname = "first"\n[[stage]]\nname = "second"\nenv.VALUE = "2"\n')
    printed = stage.do("submit", "./chain.toml", "--wait", "-o", "json")
    chained = [RunDir(stage.runs / json.loads(line)["id"]) for line in printed.splitlines()]
    assert [stage.log(run, 0).splitlines()[-1] for run in chained] == ["0", "2"]
    stage.write_job("swept", job)
    (stage.folder / "points.txt").write_text("env.VALUE=7\nenv.VALUE=8\n")
    for words in (("--sweep-file", "points.txt"), ("--sweep", "env.VALUE=7,8")):
        sweep = stage.do("submit", "./swept.toml", *words, "--wait").strip()
        runs = json.loads(stage.do("status", sweep, "-o", "json"))["runs"]
        assert [run["stage"] for run in runs] == ["finished"] * 2
        logs = {stage.log(RunDir(stage.runs / run["id"]), 0).splitlines()[-1] for run in runs}
        assert logs == {"7", "8"}
        assert stage.do("report", sweep) == f"{sweep}.html\n"


@pytest.mark.long
def test_a_dry_run_prints_the_script_and_submits_nothing(stage: FarStage) -> None:
    job = stage.write_job("shown", program("print(1)"))
    assert "#SBATCH" in stage.do("submit", job, "--dry-run")
    verdict = stage.call("submit", job, "--dry-run=slurm", "--cluster", "far")
    assert verdict.returncode == 0, verdict.stderr
    assert "estimated start: now" in stage.do("nodes", "--for", job)
    assert "node" in stage.do("nodes")
    assert not list(stage.runs.glob("[!.]*"))


@pytest.mark.long
def test_a_run_is_held_released_and_resumed_after_a_failure(stage: FarStage) -> None:
    run = RunDir(stage.runs / stage.do("submit", stage.write_job("held", program("print(1)")), "--hold").strip())
    assert stage.status(run)["stage"] == "queued"
    assert "held" in stage.do("why", run.id).lower()
    stage.do("release", run.id)
    stage.wait_for_state(run, "finished")
    failing = program("import os; raise SystemExit(int(os.environ['CODE']))", f"{SHAPE}[env]\nCODE = '3'\n")
    job = stage.write_job("failing", failing)
    assert "ended: failed" in stage.do("submit", job, "--wait", code=1)
    assert "exited with 3" in stage.do("why", "failing")
    assert stage.do("resume", "failing", "--set", "env.CODE=0", "--wait").startswith("failing-")
    assert "finished" in stage.do("status", "failing")
    waiting = stage.do("submit", job, "--set", "env.CODE=0", "--wait", "--timeout", "0", code=124)
    assert "after 0 s" in waiting


def typed_at_a_terminal(stage: FarStage, command: str) -> tuple[int, str]:
    """The exit code of a command line, and what it shows, with the errors on a terminal as for a person."""
    reader, writer = pty.openpty()
    environment = {**stage.environment, "PATH": f"{Path(CLUSTERCTL).parent}:{stage.environment['PATH']}"}
    shown = b""
    with subprocess.Popen(
        ["bash", "-c", command],
        cwd=stage.folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=writer,
    ) as process:
        os.close(writer)
        with suppress(OSError):  # how a terminal ends
            while piece := os.read(reader, 2**16):
                shown += piece
        assert process.stdout
        shown += process.stdout.read()
        code = process.wait(timeout=120)
    os.close(reader)
    return code, shown.decode().replace("\r\n", "\n")


@pytest.mark.long
def test_every_command_suggested_there_works_as_it_is_printed(stage: FarStage) -> None:
    """Nothing but --cluster chooses the far cluster: without it, each of these would find no run."""
    (stage.folder / "fail.py").write_text("raise SystemExit('no such column')\n")
    (stage.folder / "wait.py").write_text("import time\ntime.sleep(1)\n")
    suggested: dict[str, str] = {}  # by the command that printed it

    def provoke(command: str) -> str:
        command = command.replace("clusterctl ", "", 1)
        before, dashes, after = command.partition(" -- ")
        _, shown = typed_at_a_terminal(stage, f"clusterctl {before} --cluster far{dashes}{after}")
        assert "Traceback" not in shown
        suggested.update({" ".join(["clusterctl", *words]): command for words in commands_in(shown)})
        return shown

    submitted = re.search(r"fails-[\w-]+", provoke("clusterctl submit --name fails --wait -- python fail.py"))
    assert submitted
    failed = submitted[0]
    provoke("clusterctl submit --name waits --hold -- python wait.py")
    for command in (
        f"why {failed}",
        "why waits",
        "status",
        "status nothing",
        f"logs {failed} --rank 9",
        f"cancel {failed}",
        "resume waits",
        f"report {failed} {failed}",
        f"diff {failed} {failed}",
        f"tunnel {failed} 8888",
        f"attach {failed} -- true",
        "submit --nodes 99 -- python fail.py",
        f"rerun {failed} --hold",
        "nodes --for nothing",
        "alloc --end 99999",
        "monitor",
    ):
        provoke(f"clusterctl {command}")
    needs_it = {one for one in suggested if any(one.startswith(f"clusterctl {name}") for name in OF_RUNS | OF_CLUSTERS)}
    assert {one: suggested[one] for one in needs_it if " --cluster far" not in one} == {}
    assert len(needs_it) > 10
    assert {one.split()[1] for one in needs_it} >= {"status", "why", "logs", "submit", "cancel", "release"}
    problems = []
    order = {"release": 0, "cancel": 2}  # what follows a run needs one that was released; the last ends runs
    alike = {re.sub(r"(\w+-)?\d{8}-\d{6}-\w{4}", "RUN", one): one for one in sorted(needs_it)}
    for command in sorted(alike.values(), key=lambda one: order.get(one.split()[1], 1)):
        if re.search(r"\b[A-Z]{3,}\b", command):
            continue  # a word that its reader fills in
        code, shown = typed_at_a_terminal(stage, f"timeout 60 {command}")
        if code not in (0, 1, 124) or "no run named" in shown or "error: no such" in shown:
            problems.append(f"{command} (of {suggested[command]}): {code}\n{shown}")
    assert not problems, "\n\n".join(problems)


@pytest.mark.long
def test_nodes_are_held_for_runs_and_given_back(stage: FarStage) -> None:
    job = stage.write_job("held", program("print('warm')"))
    number = stage.do("alloc", job).strip()
    run = RunDir(stage.runs / stage.do("submit", job, "--in-allocation", number, "--wait").strip())
    assert "warm" in stage.log(run, 0)
    stage.do("alloc", "--end", number)


@pytest.mark.long
def test_a_local_image_is_copied_to_the_remote_machine(stage: FarStage) -> None:
    make_thin(stage.folder)
    imported = Path(stage.do("image", "import", "thin.sqsh").strip())
    assert imported.is_relative_to(stage.far.shared / "data")
    assert imported.read_bytes() == (stage.folder / "thin.sqsh").read_bytes()
    assert "thin" in stage.do("image", "list")
    missing = stage.do("image", "import", "./missing.sqsh", code=5)
    assert "no such" in missing


@pytest.mark.long
def test_data_is_generated_there_and_trained_on(stage: FarStage, tmp_path: Path) -> None:
    stage.do("data", "generate", "reddit", "--root", str(tmp_path / "data there"), "--scale", "0.01")
    assert (tmp_path / "data there" / "raw").is_dir()
    words = (
        "--nodes",
        "1",
        "--gpus-per-node",
        "0",
        "--tasks-per-node",
        "1",
        "--set",
        "resources.memory=4G",
        "--set",
        "resources.cpus_per_task=2",
        "--set",
        "train.epochs=1",
        "--set",
        f"data.root={tmp_path / 'data there'}",
        "--wait",
    )
    run = RunDir(stage.runs / stage.do("submit", "reddit", *words).strip())
    assert stage.status(run)["test_accuracy"] > 0


@pytest.mark.long
def test_the_shipped_cora_job_trains_there(stage: FarStage) -> None:
    run = RunDir(stage.runs / stage.do("submit", "cora", "--nodes", "1", "--set", "train.epochs=2", "--wait").strip())
    assert stage.status(run)["stage"] == "finished"


@pytest.mark.long
def test_the_remote_dashboard_opens_here(stage: FarStage) -> None:
    run = stage.do("submit", "cora", "--hold").strip()
    showing = stage.begin("dashboard", "--cluster", "far")
    assert showing.stdout
    address = showing.stdout.readline().strip()
    browser = build_opener(HTTPCookieProcessor())
    with browser.open(address, timeout=60) as page:
        assert run in page.read().decode()
    os.killpg(showing.pid, signal.SIGINT)
    printed, errors = showing.communicate(timeout=60)
    assert (printed, errors.strip()) == ("", "press Ctrl-C to stop")
    with pytest.raises(URLError):
        browser.open(address, timeout=10)


@pytest.mark.long
def test_doctor_checks_both_machines(stage: FarStage) -> None:
    shown = stage.call("doctor", "--cluster", "far")
    assert "error" not in shown.stderr.lower(), shown.stderr
    (host,) = (line for line in shown.stdout.splitlines() if "  host " in line)
    assert f"{platform.node()}; clusterctl is in {stage.far.installed}" in host


@pytest.mark.long
def test_doctor_of_a_machine_without_torch_shows_how_to_install_it(far_shared: Path, tmp_path: Path) -> None:
    python = tmp_path / "venv" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    with made(far_shared) as far, staged(far, tmp_path) as stage:
        far.write_cluster(f'kind = "emulator"\nruns = "{tmp_path}/runs"\npython = "{python}"\n')
        shown = stage.call("doctor", "--cluster", "far")
    assert f"{python} has no torch" in shown.stdout, shown.stderr
    assert f"{python} -m pip install 'torch>=" in shown.stdout


@pytest.mark.long
def test_completion_never_waits_for_the_machine(far_shared: Path, tmp_path: Path) -> None:
    with made(far_shared, through_relay=True) as far, staged(far, tmp_path) as stage:
        (far.link / "silent").touch()
        began = time.monotonic()
        for line in ("clusterctl status --cluster far ", "clusterctl logs --cluster far co"):
            completing = stage.environment | {"_CLUSTERCTL_COMPLETE": "bash", "COMP_LINE": line, "COMP_POINT": "99"}
            stage.environment = completing
            assert stage.call(timeout=20).stderr == ""
        assert time.monotonic() - began < 15


@pytest.mark.long
def test_completion_offers_the_names_of_remote_runs(stage: FarStage) -> None:
    run = stage.do("submit", "cora", "--hold").strip()

    def completed(line: str) -> list[str]:
        stage.environment |= {"_CLUSTERCTL_COMPLETE": "bash", "COMP_LINE": line, "COMP_WORD": line.split(" ")[-1]}
        done = stage.call(timeout=20)
        for name in ("_CLUSTERCTL_COMPLETE", "COMP_LINE", "COMP_WORD"):
            del stage.environment[name]
        return done.stdout.split()

    wait_until(lambda: run in completed("clusterctl why --cluster far cora-2"), 30, "the name of the run")
    assert completed("clusterctl why --cluster far @l") == ["@last"]
    stage.far.cut()
    assert completed("clusterctl why --cluster far cora-2") == [run]

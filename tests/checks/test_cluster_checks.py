"""What `doctor` reports about a machine and a cluster, rule by rule."""

from __future__ import annotations

import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clusterctl.launcher.checks.interpreters import ask_packages, find_setup_problem
from clusterctl.launcher.checks.look import activation
from clusterctl.launcher.checks.surroundings import (
    Answer,
    Check,
    ContainerFacts,
    Folder,
    Interpreter,
    LoginNode,
    Seen,
    Surroundings,
    Verdict,
)
from clusterctl.launcher.checks.verify import judge
from clusterctl.launcher.cli.options import with_flags
from clusterctl.launcher.containers.contents import Contents
from clusterctl.launcher.containers.runtimes import ContainerView
from clusterctl.launcher.submission.plan import Programs
from clusterctl.shared.errors import SlurmError
from clusterctl.shared.spec import Cluster, Container, Emulator
from clusterctl.shared.spec.keys import parse_override

ANSWERS = {
    "version": "slurm 23.11.4\n",
    "ping": "Slurmctld(primary) at login1 is UP\n",
    "partitions": "gpu*\ndebug\n",
    "config": "AccountingStorageType   = accounting_storage/slurmdbd\n",
    "preemption": "PartitionName=gpu\n   X=0 PreemptMode=OFF X=1\n\nPartitionName=debug\n   PreemptMode=REQUEUE\n",
    "srun": "  --mpi=type\n      --container-image=[USER@][REGISTRY#]IMAGE[:TAG]|PATH\n",
}
DOWN = SlurmError("scontrol did not answer within 10 s", "ask it with: scontrol ping")
PYTHON = Seen("/venv/bin/python", True)
PACKAGES = {"torch": "2.6.0"}
NODE = LoginNode(
    python="3.11.9",
    state=Folder("/home/me/.local/state/clusterctl", exists=True, writable=True),
    images=None,
    clock_ahead=0.01,
    processes=100_000,
    git=True,
)
GOOD = Surroundings(
    cluster=Cluster(name="site"),
    interpreter=Interpreter(PYTHON, (3, 12, 1), PACKAGES),
    slurm=dict(ANSWERS),
    runs=Folder("/shared/runs", exists=True, writable=True, file_system="nfs4"),
    open_files=65536,
    login_node=NODE,
)


def the(found: Surroundings, name: str) -> Check:
    """The worst check with this name."""
    chosen = [check for check in judge(found) if check.name == name]
    return max(chosen, key=lambda check: list(Verdict).index(check.verdict))


def with_answer(name: str, answer: Answer, cluster: Cluster = GOOD.cluster) -> Surroundings:
    return replace(GOOD, slurm={**GOOD.slurm, name: answer}, cluster=cluster)


def on_node(**facts: Any) -> Surroundings:
    return replace(GOOD, login_node=replace(NODE, **facts))


def without(package: str) -> Interpreter:
    return Interpreter(PYTHON, (3, 12, 1), {**PACKAGES, package: ""})


def test_the_hint_installs_pip_first_if_it_is_missing(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path], check=True)
    found = replace(GOOD, interpreter=ask_packages(Seen(f"{tmp_path}/bin/python", True)))
    hint = the(found, "torch").hint
    assert hint.startswith(f"{tmp_path}/bin/python -m ensurepip && {tmp_path}/bin/python -m pip install 'torch")


def test_doctor_reports_where_programs_come_from() -> None:
    found = replace(GOOD, programs=Programs("/venv/bin/python", named=False, setup=("module load cuda",)))
    check = the(found, "programs")
    assert (check.verdict, check.hint) == (Verdict.OK, "")
    assert "`module load cuda`" in check.message
    assert "/venv/bin" in check.message


def test_an_active_environment_that_programs_do_not_use_is_a_warning_with_a_fix() -> None:
    programs = Programs("/venv/bin/python", named=False)
    active = replace(GOOD, login_node=None, programs=programs, activation="source '/my env/bin/activate'")
    (check,) = [check for check in judge(active) if check.name == "programs"]
    assert check.verdict is Verdict.WARN
    assert check.message.startswith(
        "programs such as python and torchrun come from /venv/bin, not from the environment"
    )
    (_, setting) = shlex.split(with_flags(check.hint).partition(": ")[2])
    assert parse_override(setting, "command") == (("setup",), ["source '/my env/bin/activate'"])
    for chosen in (
        replace(programs, named=True),
        replace(programs, in_image=True),
        replace(programs, setup=("ml python",)),
    ):
        assert [check for check in judge(replace(active, programs=chosen)) if check.name == "programs"] == []


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("source env/bin/activate", "setup: relative path: env/bin/activate"),
        (". /nowhere/bin/activate", "setup: no such file: /nowhere/bin/activate"),
    ],
)
def test_a_setup_line_that_cannot_find_its_file_is_refused(line: str, message: str) -> None:
    here = replace(GOOD, cluster=Cluster(name="here", kind="emulator"), programs=Programs("python", False, (line,)))
    check = the(here, "setup")
    assert (check.verdict, check.message) == (Verdict.FAIL, message)


@pytest.mark.parametrize(
    ("lines", "number", "words"),
    [
        (("export A=1", "if true; then", "  echo )"), 3, "syntax error near unexpected token `)'"),
        (("export A=1", "fi"), 2, "syntax error near unexpected token `fi'"),
        (("echo 'open",), 1, "unexpected EOF"),
        (("for i in 1 2; do", "echo $i"), 2, "unexpected end of file"),
        (("cat <<END", "text"), 1, "here-document"),
    ],
)
def test_a_syntax_error_in_setup_is_found_before_submission(lines: tuple[str, ...], number: int, words: str) -> None:
    found = find_setup_problem(lines, 1)
    assert found is not None
    check = the(replace(GOOD, setup_problem=found), "setup")
    assert check.verdict is Verdict.FAIL
    assert check.message.startswith(f"setup line {number}: {lines[number - 1].strip()[:20]}".rstrip())
    assert words in check.message
    assert ("cluster" if number == 1 else "job") in check.hint


def test_lines_that_bash_accepts_have_no_syntax_error() -> None:
    good = (
        "f() {",
        "  [[ $1 == @(a|b) ]] && echo $1",
        "}",
        "cat <<END",
        "it's fine",
        "END",
        "module load x # )",
        "a=(1 2)",
    )
    assert find_setup_problem(good, 0) is None
    assert find_setup_problem((), 0) is None


@pytest.mark.parametrize(
    ("environment", "line"),
    [
        ({}, ""),
        ({"VIRTUAL_ENV": "/own"}, ""),
        ({"VIRTUAL_ENV": "/a b"}, "source '/a b/bin/activate'"),
        ({"CONDA_PREFIX": "/c", "CONDA_EXE": "/c/bin/conda"}, ""),  # base, active in every shell
        ({"CONDA_PREFIX": "/c/envs/x", "CONDA_EXE": "/c/bin/conda"}, "source /c/bin/activate /c/envs/x"),
        ({"CONDA_PREFIX": "/own", "CONDA_EXE": "/c/bin/conda"}, ""),
        ({"VIRTUAL_ENV": "/own", "CONDA_PREFIX": "/c/envs/x", "CONDA_EXE": "/c/bin/conda"}, ""),
    ],
)
def test_the_active_environment_is_read_from_its_variables(environment: dict[str, str], line: str) -> None:
    assert activation(environment, "/own") == line


def test_a_healthy_cluster_needs_no_hints() -> None:
    checks = judge(GOOD)
    assert {check.verdict for check in checks} == {Verdict.OK}
    assert {check.hint for check in checks} == {""}


@pytest.mark.parametrize(
    ("found", "name", "verdict", "message", "hint"),
    [
        (
            replace(GOOD, interpreter=without("torch")),
            "torch",
            "WARN",
            "no torch: only jobs with workload `command` run without it",
            "/venv/bin/python -m pip install 'torch>=2.6' ",
        ),
        (
            replace(GOOD, interpreter=Interpreter(Seen("/x/python", False))),
            "tasks",
            "FAIL",
            "no such interpreter: /x/python",
            "`python`",
        ),
        (
            replace(GOOD, interpreter=Interpreter(Seen("/x/python", False, visible=False))),
            "tasks",
            "WARN",
            "not on this machine: /x/python",
            "nodes must have it",
        ),
        (
            replace(GOOD, interpreter=Interpreter(PYTHON, problem="no answer within 30 s")),
            "tasks",
            "FAIL",
            "does not run as Python: /venv/bin/python: no answer",
            "`python`",
        ),
        (
            replace(
                GOOD,
                interpreter=Interpreter(Seen("/x/python", False)),
                cluster=Cluster(name="site", setup=("module load x",)),
            ),
            "tasks",
            "WARN",
            "no such interpreter: /x/python",
            "`python`",
        ),
        (
            replace(GOOD, interpreter=Interpreter(PYTHON, (3, 9, 2), PACKAGES)),
            "tasks",
            "FAIL",
            "Python 3.9.2",
            "3.11 or later",
        ),
        (
            with_answer("version", SlurmError("sbatch is not on PATH", "--cluster local")),
            "slurm",
            "FAIL",
            "sbatch is not on PATH",
            "local",
        ),
        (with_answer("ping", DOWN), "controller", "FAIL", "did not answer", "scontrol ping"),
        (with_answer("ping", "Slurmctld(primary) at a is DOWN"), "controller", "FAIL", "is DOWN", "administrator"),
        (
            with_answer("partitions", "gpu*\ndebug", Cluster(name="s", partition="gpus")),
            "partition",
            "FAIL",
            "no partition gpus",
            "gpu, debug",
        ),
        (with_answer("partitions", "gpu\ndebug"), "partition", "WARN", "no default", "one of: gpu, debug"),
        (
            with_answer("srun", "--mpi", Cluster(name="s", container=Container(image="a"))),
            "containers",
            "FAIL",
            "no --container-image",
            "pyxis",
        ),
        (replace(GOOD, runs=replace(GOOD.runs, free_bytes=2**20)), "space", "FAIL", "the disk is full", "df -h"),
        (
            on_node(state=replace(NODE.state, free_files=0)),
            "space",
            "FAIL",
            "0 inodes free in the state folder",
            "df -i",
        ),
        (replace(GOOD, runs=replace(GOOD.runs, writable=False)), "runs", "FAIL", "cannot write", "CLUSTERCTL_RUNS"),
        (replace(GOOD, runs=replace(GOOD.runs, ours=False)), "runs", "FAIL", "another user", "CLUSTERCTL_RUNS"),
        (
            replace(GOOD, runs=replace(GOOD.runs, open_parent="/s p")),
            "runs",
            "FAIL",
            "can write to /s p",
            "chmod o-w '/s p'",
        ),
        (replace(GOOD, runs=replace(GOOD.runs, shared_parent="/s")), "runs", "WARN", "can be exchanged", "chmod +t /s"),
        (
            replace(GOOD, runs=replace(GOOD.runs, mode=0o755)),
            "runs",
            "WARN",
            "readable by others",
            "chmod 700 /shared/runs",
        ),
        (
            replace(GOOD, runs=replace(GOOD.runs, file_system="xfs")),
            "runs",
            "WARN",
            "is on xfs",
            "shared file system",
        ),
        (on_node(state=replace(NODE.state, writable=False)), "state", "FAIL", "cannot write", "XDG_STATE_HOME"),
        (
            on_node(images=Folder("/images", exists=True, writable=False)),
            "images",
            "FAIL",
            "cannot write to /images",
            "`images`",
        ),
        (on_node(clock_ahead=-90.0), "clock", "WARN", "90 s behind", "NTP"),
        (on_node(clock_ahead=None), "clock", "WARN", "cannot create a file", "fix the runs folder"),
        (replace(GOOD, open_files=256), "open files", "WARN", "at most 256", "ulimit -Hn 1024"),
        (on_node(processes=100), "processes", "WARN", "at most 100", "ulimit -u 512"),
        (on_node(git=False), "git", "WARN", "not on PATH", "install git"),
    ],
)
def test_each_problem_comes_with_its_hint(
    found: Surroundings, name: str, verdict: str, message: str, hint: str
) -> None:
    check = the(found, name)
    assert check.verdict == verdict
    assert check.fatal == (verdict == "FAIL")
    assert message in check.message
    assert hint in check.hint


def test_without_slurm_its_other_checks_are_skipped() -> None:
    names = [check.name for check in judge(with_answer("version", DOWN))]
    assert "slurm" in names
    assert not {"controller", "partition", "accounting", "containers"} & set(names)


def test_the_emulator_needs_neither_slurm_nor_a_shared_disk() -> None:
    cluster = Cluster(name="local", kind="emulator", emulator=Emulator(nodes=3))
    found = replace(GOOD, slurm={}, cluster=cluster, runs=replace(GOOD.runs, file_system="ext4"))
    assert {check.verdict for check in judge(found)} == {Verdict.OK}
    assert the(found, "emulator").message.startswith("3 virtual nodes")


def with_image(**facts: Any) -> Surroundings:
    view = ContainerView(image="/images/pyg.sqsh")
    container = ContainerFacts(**{"view": view, "python": "/opt/venv/bin/python", **facts})
    return replace(GOOD, interpreter=None, containers=(container,))


def test_an_image_in_a_registry_is_not_inspected() -> None:
    check = the(with_image(view=ContainerView(image="nvcr.io#x")), "image")
    assert (check.verdict, check.message) == (Verdict.OK, "nvcr.io#x, contents not inspected")


def test_an_image_is_described_by_its_packages() -> None:
    contents = Contents(packages={"torch": "2.13.0"}, python="3.12")
    check = the(with_image(image=Seen("/images/pyg.sqsh", True), contents=contents), "image")
    assert check.message == "/images/pyg.sqsh, Python 3.12, torch 2.13.0"


def test_a_missing_image_fails_with_a_fix() -> None:
    check = the(with_image(image=Seen("/images/pyg.sqsh", False)), "image")
    assert (check.verdict, check.message) == (Verdict.FAIL, "no such image: /images/pyg.sqsh")
    assert "clusterctl image build" in check.hint
    foreign = the(with_image(image=Seen("/images/pyg.sqsh", False, visible=False)), "image")
    assert foreign.verdict is Verdict.WARN


def test_without_pyxis_a_sandbox_runs_images_itself() -> None:
    found = with_answer("srun", "--mpi", Cluster(name="s", kind="sandbox"))
    assert the(found, "containers").verdict is Verdict.OK


def test_doctor_looks_for_apptainer_if_the_cluster_file_names_it() -> None:
    found = with_answer("srun", "--mpi", Cluster(name="s", container_runtime="apptainer"))
    assert the(found, "containers").verdict is Verdict.WARN
    there = replace(found, login_node=replace(NODE, apptainer=True))
    assert the(there, "containers").message == "Apptainer runs images"


@pytest.mark.parametrize(
    ("debug", "partition", "message"),
    [
        ("REQUEUE", None, "by requeueing, 120 s after"),
        ("CANCEL", None, "in a job of their own in 1 partition, debug: Slurm cancels"),
        ("GANG,CANCEL", "debug", "in a job of their own in 1 partition, debug"),
        ("CANCEL", "gpu", "by requeueing"),
    ],
)
def test_doctor_tells_how_runs_are_started_again(debug: str, partition: str | None, message: str) -> None:
    text = ANSWERS["preemption"].replace("REQUEUE", debug)
    check = the(with_answer("preemption", text, Cluster(name="site", partition=partition)), "restarts")
    assert (check.verdict, check.message[: len(message)]) == (Verdict.OK, message)


@pytest.mark.parametrize(
    ("qos", "answer", "message"),
    [
        (None, "normal|cluster|00:00:00\nscavenger|cancel|00:01:00\n", "in a job of their own in 1 QOS, scavenger"),
        (
            "normal",
            "normal|cluster|00:00:00\nscavenger|cancel|00:01:00\n",
            "by requeueing, 120 s after the end of an attempt",
        ),
        ("scavenger", "normal||\nscavenger|gang,cancel|\n", "in a job of their own in 1 QOS, scavenger"),
        (None, SlurmError("no database"), "by requeueing, 120 s after the end of an attempt; the QOS may cancel"),
    ],
)
def test_where_the_qos_decides_doctor_reads_its_rules(qos: str | None, answer: Answer, message: str) -> None:
    """Slurm then ignores the modes of partitions."""
    config = ANSWERS["config"] + "PreemptMode             = REQUEUE\nPreemptType             = preempt/qos\n"
    partitions = ANSWERS["preemption"].replace("REQUEUE", "CANCEL")
    answers: dict[str, Answer] = {**ANSWERS, "config": config, "preemption": partitions, "qos": answer}
    check = the(replace(GOOD, cluster=Cluster(name="site", qos=qos), slurm=answers), "restarts")
    assert (check.verdict, check.message[: len(message)]) == (Verdict.OK, message)


def test_doctor_tells_how_long_a_requeued_job_waits() -> None:
    check = the(with_answer("config", "AuthInfo = socket=/run/munge,cred_expire=5\n"), "restarts")
    assert check.message == "by requeueing, 5 s after the end of an attempt"


@pytest.mark.parametrize(
    ("kind", "message"), [("accounting_storage/none", "off"), ("(null)", "off"), ("x/slurmdbd", "on")]
)
def test_accounting_may_be_on_or_off(kind: str, message: str) -> None:
    check = the(with_answer("config", f"AccountingStorageType = {kind}\n"), "accounting")
    assert check.verdict is Verdict.OK
    assert check.message.startswith(message)


def test_a_missing_folder_is_created_when_needed() -> None:
    check = the(replace(GOOD, runs=Folder("/shared/new", exists=False, writable=True, mode=0o755)), "runs")
    assert check.verdict is Verdict.OK
    assert "created when needed" in check.message

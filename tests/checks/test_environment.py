"""What doctor says of evidence, rule by rule."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from clusterctl.checks.container import Facts, Place
from clusterctl.checks.environment import Finding, Verdict, examine
from clusterctl.checks.machine import Evidence, Interpreter
from clusterctl.checks.surroundings import Folder
from clusterctl.containers.contents import Contents
from clusterctl.containers.view import View
from clusterctl.errors import SlurmError
from clusterctl.spec import Cluster, Container, Emulator

ANSWERS = {
    "version": "slurm 23.11.4\n",
    "ping": "Slurmctld(primary) at login1 is UP\n",
    "partitions": "gpu*\ndebug\n",
    "config": "AccountingStorageType   = accounting_storage/slurmdbd\n",
    "srun": "  --mpi=type\n      --container-image=[USER@][REGISTRY#]IMAGE[:TAG]|PATH\n",
}
DOWN = SlurmError("scontrol did not answer within 10 s", "ask it with: scontrol ping")
GOOD = Evidence(
    cluster=Cluster(name="site"),
    python="3.11.9",
    interpreter=Interpreter("/venv/bin/python", {"python": "3.12.1", "torch": "2.6.0", "submitit": "1.5.4"}),
    slurm=dict(ANSWERS),
    runs=Folder("/shared/runs", exists=True, writable=True, file_system="nfs4"),
    state=Folder("/home/me/.local/state/clusterctl", exists=True, writable=True),
    images=None,
    clock_ahead=0.01,
    open_files=65536,
    processes=100_000,
    git=True,
)


def the(evidence: Evidence, subject: str, verdict: Verdict | None = None) -> Finding:
    """The finding on `subject`: the worst one, or the one with `verdict`."""
    found = [finding for finding in examine(evidence) if finding.subject == subject]
    chosen = [finding for finding in found if verdict in (None, finding.verdict)]
    return max(chosen, key=lambda finding: list(Verdict).index(finding.verdict))


def with_answer(name: str, told: str | SlurmError, cluster: Cluster = GOOD.cluster) -> Evidence:
    return replace(GOOD, slurm=GOOD.slurm | {name: told}, cluster=cluster)


def without(module: str) -> Interpreter:
    says = (
        {name: version for name, version in GOOD.interpreter.says.items() if name != module} if GOOD.interpreter else {}
    )
    return Interpreter("/venv/bin/python", says | {f"{module} problem": f"ImportError: no {module}"})


def test_where_all_is_well_nothing_is_to_be_fixed() -> None:
    findings = examine(GOOD)
    assert {finding.verdict for finding in findings} == {Verdict.OK}
    assert {finding.fix for finding in findings} == {""}


@pytest.mark.parametrize(
    ("evidence", "subject", "verdict", "message", "fix"),
    [
        (
            replace(GOOD, interpreter=without("torch")),
            "torch",
            "FAIL",
            "no torch",
            "-m pip install 'clusterctl[train]'",
        ),
        (replace(GOOD, interpreter=without("submitit")), "submitit", "FAIL", "no submitit", "pip install clusterctl"),
        (
            replace(GOOD, interpreter=Interpreter("/x/python", {}, "No such file or directory")),
            "tasks",
            "FAIL",
            "/x/python: No such file",
            "`python`",
        ),
        (
            replace(GOOD, interpreter=without("torch"), cluster=Cluster(name="site", setup=("module load torch",))),
            "torch",
            "WARN",
            "no torch",
            "pip install",
        ),
        (
            replace(
                GOOD, interpreter=Interpreter("/usr/bin/python3", {"python": "3.9.2", "torch": "2", "submitit": "1"})
            ),
            "tasks",
            "FAIL",
            "Python 3.9.2",
            "3.11 or later",
        ),
        (
            with_answer("version", SlurmError("no sbatch on PATH", "--cluster local")),
            "slurm",
            "FAIL",
            "no sbatch",
            "local",
        ),
        (with_answer("ping", DOWN), "controller", "FAIL", "did not answer", "scontrol ping"),
        (with_answer("ping", "Slurmctld(primary) at a is DOWN"), "controller", "FAIL", "is DOWN", "administrator"),
        (
            with_answer("partitions", "gpu*\ndebug", Cluster(name="s", partition="gpus")),
            "partition",
            "FAIL",
            "knows no gpus",
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
        (replace(GOOD, runs=replace(GOOD.runs, writable=False)), "runs", "FAIL", "cannot write", "CLUSTERCTL_RUNS"),
        (replace(GOOD, runs=replace(GOOD.runs, ours=False)), "runs", "FAIL", "someone else", "CLUSTERCTL_RUNS"),
        (
            replace(GOOD, runs=replace(GOOD.runs, mode=0o755)),
            "runs",
            "WARN",
            "others may look",
            "chmod 700 '/shared/runs'",
        ),
        (
            replace(GOOD, runs=replace(GOOD.runs, file_system="xfs")),
            "runs",
            "WARN",
            "lies on xfs",
            "shared file system",
        ),
        (replace(GOOD, state=replace(GOOD.state, writable=False)), "state", "FAIL", "cannot write", "XDG_STATE_HOME"),
        (
            replace(GOOD, images=Folder("/images", exists=True, writable=False)),
            "images",
            "FAIL",
            "cannot write to /images",
            "`images`",
        ),
        (replace(GOOD, clock_ahead=-90.0), "clock", "WARN", "90 s behind", "NTP"),
        (replace(GOOD, clock_ahead=None), "clock", "WARN", "no file", "folder of runs"),
        (replace(GOOD, open_files=256), "open files", "WARN", "at most 256", "ulimit -n 1024"),
        (replace(GOOD, processes=100), "processes", "WARN", "at most 100", "ulimit -u 512"),
        (replace(GOOD, git=False), "git", "WARN", "not on PATH", "install git"),
    ],
)
def test_what_is_wrong_comes_with_its_fix(
    evidence: Evidence, subject: str, verdict: str, message: str, fix: str
) -> None:
    finding = the(evidence, subject)
    assert finding.verdict == verdict
    assert message in finding.message
    assert fix in finding.fix


def test_without_slurm_nothing_more_is_said_of_it() -> None:
    subjects = [finding.subject for finding in examine(with_answer("version", DOWN))]
    assert "slurm" in subjects
    assert not {"controller", "partition", "accounting", "containers"} & set(subjects)


def test_the_emulator_is_asked_nothing_and_may_lie_on_a_local_disk() -> None:
    cluster = Cluster(name="local", kind="emulator", emulator=Emulator(nodes=3))
    evidence = replace(GOOD, slurm={}, cluster=cluster, runs=replace(GOOD.runs, file_system="ext4"))
    assert {finding.verdict for finding in examine(evidence)} == {Verdict.OK}
    assert the(evidence, "emulator").message.startswith("3 virtual nodes")


def with_image(**facts: Any) -> Evidence:
    view = View(image="/images/pyg.sqsh")
    container = Facts(**{"view": view, "python": "/opt/venv/bin/python", **facts})
    return replace(GOOD, interpreter=None, container=container)


def test_an_image_that_is_still_in_its_registry_is_not_looked_into() -> None:
    finding = the(with_image(view=View(image="nvcr.io#x")), "image")
    assert (finding.verdict, finding.message) == (Verdict.OK, "nvcr.io#x, which is not looked into")


def test_an_image_is_known_by_its_packages() -> None:
    contents = Contents(packages={"submitit": "1.5.4", "torch": "2.13.0"}, python="3.12")
    finding = the(with_image(image=Place(exists=True), contents=contents), "image")
    assert finding.message == "/images/pyg.sqsh, Python 3.12, torch 2.13.0, submitit 1.5.4"


def test_an_image_that_no_run_could_use_fails_with_its_fix() -> None:
    finding = the(with_image(image=Place(exists=False)), "image")
    assert (finding.verdict, finding.message) == (Verdict.FAIL, "no such image: /images/pyg.sqsh")
    assert "clusterctl image build" in finding.fix
    foreign = the(with_image(image=Place(exists=False, foreign=True)), "image")
    assert foreign.verdict is Verdict.WARN


def test_without_pyxis_images_are_clusterctls_own_to_run() -> None:
    evidence = with_answer("srun", "--mpi", Cluster(name="s", kind="sandbox"))
    assert the(evidence, "containers").verdict is Verdict.OK


@pytest.mark.parametrize(
    ("kind", "says"), [("accounting_storage/none", "off"), ("(null)", "off"), ("x/slurmdbd", "on")]
)
def test_accounting_is_on_or_off_and_either_will_do(kind: str, says: str) -> None:
    finding = the(with_answer("config", f"AccountingStorageType = {kind}\n"), "accounting")
    assert finding.verdict is Verdict.OK
    assert finding.message.startswith(says)


def test_a_folder_that_is_not_there_yet_is_made_when_it_is_needed() -> None:
    finding = the(replace(GOOD, runs=Folder("/shared/new", exists=False, writable=True, mode=0o755)), "runs")
    assert finding.verdict is Verdict.OK
    assert "made when it is needed" in finding.message

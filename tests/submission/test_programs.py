"""Where Python and other programs come from: the batch script in a real bash, with real environments."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from support.environments import WORDS, make_conda, make_environment

from clusterctl.launcher.config import Resolved
from clusterctl.launcher.submission.plan import Programs, activated_environments, make_plan
from clusterctl.launcher.submission.script import FIRST_IN_IMAGE, render
from clusterctl.shared.record.layout import RunDir
from clusterctl.shared.spec import Cluster, CommandTrain, Job, Resources

# A stand-in for the tasks' srun; the last argument of what it starts is the run folder.
SRUN = """#!/bin/bash
while [ "$1" != sh ]; do shift; done
shift 4 # sh -c LINE sh
"${@:1:$#-4}" bash -c 'echo "$VIRTUAL_ENV$CONDA_PREFIX"; type -P "$@"' bash %s
type -P srun
"""


@pytest.fixture(scope="module")
def environments(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The environments own, other, conda/envs/third, and one that a module loads."""
    folder = tmp_path_factory.mktemp("environments")
    for name in ("own", "other", "module"):
        make_environment(folder / name)
    make_environment(make_conda(folder / "conda") / "envs" / "third")
    return folder


def found_by(
    folder: Path,
    environments: Path,
    setup: tuple[str, ...] = (),
    python: str | None = None,
    shell: Mapping[str, str] | None = None,
    env: Mapping[str, str] | None = None,
) -> list[str]:
    """The active environment, the folders (one, if all are the same) of WORDS in a task, and the folder of srun."""
    of_cluster, of_job = setup[:1], setup[1:]
    job = Job(
        name="x",
        workload="command",
        argv=("true",),
        resources=Resources(nodes=1, tasks_per_node=1, gpus_per_node=0, warning=0),
        setup=of_job,
        env=dict(env or {}),
        train=CommandTrain(),
    )
    run = RunDir(folder / "run-20260102-030405-abcd")
    for path in (run.attempts_folder, folder / "code" / "lib", folder / "code" / "project"):
        path.mkdir(parents=True)
    run.run_json.touch()
    run.code.symlink_to(folder / "code")
    resolved = Resolved(job, Cluster(name="c", setup=of_cluster, python=python), {}, folder)
    script = folder / "script.sh"
    script.write_text(render(make_plan(resolved, run, folder / "code", "0", str(environments / "own/bin/python"))))
    (folder / "bin").mkdir()
    (folder / "bin" / "srun").write_text(SRUN % " ".join(WORDS))
    (folder / "bin" / "srun").chmod(0o755)
    variables = {"SLURM_JOB_ID": "12", "SLURM_JOB_NODELIST": "n1", "PATH": f"{folder}/bin:{os.environ['PATH']}"}
    shell = {name: value.replace("$PATH", variables["PATH"]) for name, value in (shell or {}).items()}
    done = subprocess.run(["bash", script], env=variables | shell, capture_output=True, text=True, check=False)
    lines = run.attempt(0).host_log.read_text().splitlines()
    assert len(lines) > len(WORDS) + 1, (lines, done.stderr)
    variable, *words, srun = lines[: len(WORDS) + 2]
    assert [path.rpartition("/")[2] for path in words] == list(WORDS)
    folders = {os.path.relpath(os.path.dirname(path), environments) for path in words}  # noqa: PTH120
    return [variable and os.path.relpath(variable, environments), *folders, os.path.relpath(srun, folder)]


@pytest.mark.parametrize(
    ("setup", "python", "expected"),
    [
        ((), None, ["", "own/bin"]),
        (("source @/other/bin/activate",), None, ["other", "other/bin"]),
        (("export COLOUR=red", "source @/other/bin/activate"), None, ["other", "other/bin"]),  # the job's line
        (("source @/conda/bin/activate third",), None, ["conda/envs/third", "conda/envs/third/bin"]),
        (('module() { PATH="@/$2/bin:$PATH"; }', "module load module"), None, ["", "module/bin"]),
        ((), "@/other/bin/python", ["", "other/bin"]),
        (("source @/own/bin/activate",), "@/other/bin/python3", ["own", "other/bin"]),
        (('PATH="@/module/bin:$PATH"',), "python3", ["", "module/bin"]),  # by name: the one from the setup lines
    ],
)
def test_all_programs_come_from_one_folder(
    tmp_path: Path, environments: Path, setup: tuple[str, ...], python: str | None, expected: list[str]
) -> None:
    root = str(environments)
    lines = tuple(line.replace("@", root) for line in setup)
    found = found_by(tmp_path, environments, lines, python and python.replace("@", root))
    assert found == [*expected, "bin/srun"]


@pytest.mark.parametrize(
    ("active", "setup", "expected"),
    [
        ("conda/envs/third", (), ["", "own/bin"]),
        ("conda/envs/third", ("source @/conda/bin/activate third",), ["conda/envs/third", "conda/envs/third/bin"]),
        ("module", ("source @/conda/bin/activate third",), ["conda/envs/third", "conda/envs/third/bin"]),
        ("conda/envs/third", ("source @/other/bin/activate",), ["other", "other/bin"]),
    ],
)
def test_the_submitters_active_environment_is_ignored(
    tmp_path: Path, environments: Path, active: str, setup: tuple[str, ...], expected: list[str]
) -> None:
    prefix = f"{environments}/{active}"
    shell = {"CONDA_SHLVL": "1", "CONDA_PREFIX": prefix, "CONDA_DEFAULT_ENV": active, "PATH": f"{prefix}/bin:$PATH"}
    lines = tuple(line.replace("@", str(environments)) for line in setup)
    assert found_by(tmp_path, environments, lines, shell=shell) == [*expected, "bin/srun"]


def test_clusterctls_own_environment_stays_active(tmp_path: Path, environments: Path) -> None:
    own = str(environments / "own")
    shell = {"VIRTUAL_ENV": own, "PATH": f"{own}/bin:$PATH"}
    assert found_by(tmp_path, environments, shell=shell) == ["own", "own/bin", "bin/srun"]


def test_a_path_set_by_the_job_is_used(tmp_path: Path, environments: Path) -> None:
    env = {"PATH": f"{environments}/module/bin:{tmp_path}/bin:{os.environ['PATH']}"}
    assert found_by(tmp_path, environments, env=env) == ["", "module/bin", "bin/srun"]


def test_the_scripts_own_srun_is_not_shadowed(tmp_path: Path, environments: Path) -> None:
    other = environments / "own" / "bin" / "srun"
    other.write_text("#!/bin/sh\nexit 1\n")
    other.chmod(0o755)
    try:
        assert found_by(tmp_path, environments)[-1] == "bin/srun"
    finally:
        other.unlink()


def test_in_an_image_the_folder_of_python_is_first_on_path(environments: Path) -> None:
    shown = 'import os, sys; print(os.environ["PATH"], *sys.argv[1:])'
    for path in (f"{environments}/other/bin:/usr/bin:/bin", f"/nowhere:{environments}/own/bin:/usr/bin:/bin"):
        words = ["sh", "-c", FIRST_IN_IMAGE, f"{environments}/own/bin/python", "-c", shown, "a b"]
        done = subprocess.run(words, env={"PATH": path}, capture_output=True, text=True, check=True)
        expected = path if "/own/" in path else f"{environments}/own/bin:{path}"
        assert done.stdout == f"{expected} a b\n"


@pytest.mark.parametrize(
    ("programs", "place"),
    [
        (Programs("/v/bin/python", named=False), "/v/bin"),
        (Programs("/v/bin/python", named=False, in_image=True), "/v/bin in the image"),
        (
            Programs("/v/bin/python", False, ("export A=b", "module load python/3.12")),
            "the environment that `module load python/3.12` sets up, otherwise from /v/bin",
        ),
        (Programs("/v/bin/python", True, ("module load cuda",)), "/v/bin"),
        (Programs("python3.12", named=True), "the folder of python3.12"),
    ],
)
def test_programs_describe_their_origin_in_one_sentence(programs: Programs, place: str) -> None:
    assert str(programs) == f"programs such as python and torchrun come from {place}"


def test_literal_paths_sourced_by_setup_lines_are_found() -> None:
    lines = ("source env/bin/activate", ". '/a b/x.sh'", 'source "$HOME/x"', "source activate x", "echo source /x")
    assert list(Programs(sys.executable, False, lines).sourced) == ["env/bin/activate", "/a b/x.sh"]


def test_environments_that_setup_lines_activate_by_path_are_found() -> None:
    setup = (
        "module load cuda",
        "source /shared/env/bin/activate",
        '. "/shared/my env/bin/activate"',
        "source /shared/conda/bin/activate third",
        "source /shared/conda/bin/activate /shared/fourth",
        "source /shared/fifth/bin/activate && export A=1",
        "source /etc/profile.d/lmod.sh",
        "echo 'an open quote",
    )
    assert list(activated_environments("/venv/bin/python", setup)) == [
        "/venv",
        "/shared/env",
        "/shared/my env",
        "/shared/conda/envs/third",
        "/shared/fourth",
        "/shared/fifth",
    ]
    assert list(activated_environments("python3", ())) == []

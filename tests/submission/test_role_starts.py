"""Roles in images of their own: which rank the script starts in which image, and what each runtime puts before it."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterctl.launcher.config import Resolved
from clusterctl.launcher.containers.runtimes import IMAGE_MARK, IMAGE_PYTHON, step_runner
from clusterctl.launcher.submission.plan import Plan, make_plan
from clusterctl.launcher.submission.script import render
from clusterctl.shared.errors import ConfigError
from clusterctl.shared.record.layout import RunDir
from clusterctl.shared.record.roles import seating
from clusterctl.shared.spec import Cluster, CommandTrain, Container, Job, Resources
from clusterctl.shared.spec.job import Role

SITE = Cluster(name="site")


def job(roles: dict[str, Role], **more: object) -> Job:
    seated = seating(roles)
    resources = Resources(nodes=seated.nodes, tasks_per_node=seated.tasks_per_node, warning=0, gpus_per_node=0)
    made = Job(name="parts", workload="command", role=roles, resources=resources, code="/home/me", train=CommandTrain())
    return replace(made, **more)


def plan(made: Job, cluster: Cluster = SITE) -> Plan:
    run = RunDir(Path("/runs/parts-20260102-030405-abcd"))
    resolved = Resolved(made, cluster, {}, Path("/jobs/x.toml"))
    return make_plan(resolved, run, Path("/runs/.code/0123"), "0.0.0", interpreter="/venv/bin/python")


def started(planned: Plan, ranks: int) -> list[str]:
    """What each rank's command prints when bash runs the script's array of words as srun does."""
    text = render(planned)
    array = text[text.index("\ncctl_task=(") : text.index("\ncctl_standby=")]
    slots = planned.tasks // ranks if ranks else 1
    each = "\n".join(
        f'SLURM_NODEID={node} SLURM_LOCALID={slot} "${{cctl_task[@]}}"'
        for node in range(ranks)
        for slot in range(slots)
    )
    shown = subprocess.run(["bash", "-c", f"{array}\n{each}"], capture_output=True, check=True, text=True)
    return shown.stdout.splitlines()


shapes = st.lists(
    st.tuples(
        st.integers(1, 4), st.booleans(), st.integers(1, 3), st.sampled_from([None, "none", "/i 1'.sqsh", "/i2"])
    ),
    min_size=1,
    max_size=5,
)


@settings(max_examples=15, deadline=None)
@given(shapes, st.sampled_from([None, "/i2"]))
def test_every_rank_starts_in_the_image_of_its_role(
    drawn: list[tuple[int, bool, int, str | None]], of_the_job: str | None
) -> None:
    roles: dict[str, Role] = {}
    most = 0
    for number, (nodes, share, tasks, image) in enumerate(drawn):
        share, fitting = share and most > 0, min(nodes, most) if share and most else nodes
        most = most if share else fitting
        roles[f"r{number}"] = Role(program=("x",), nodes=fitting, share=share, tasks_per_node=tasks, image=image)
    made = job(roles, container=Container(image=of_the_job))
    planned = plan(made)
    commands = {start: ("echo", start.view.image if start.view else "host") for start in planned.role_starts}
    bare = [replace(start, view=None, runner=(), task=words) for start, words in commands.items()]
    own = ("echo", of_the_job or "host")
    shown = started(replace(planned, view=None, runner=(), task=own, role_starts=tuple(bare)), made.resources.nodes)
    seats = seating(roles).seats
    for rank, image in enumerate(shown):
        expected = made.image_of(roles[seats[rank].role]) if rank in seats else of_the_job
        assert image == (expected or "host")


TWO = {"server": Role(program=("x",), image="/images/a.sqsh", gpus_per_node=1), "trainer": Role(program=("y",))}


def test_under_pyxis_only_a_job_whose_roles_differ_starts_a_step_for_each_rank() -> None:
    alike = {name: replace(role, image=None) for name, role in TWO.items()}
    same = plan(job(alike, container=Container(image="/images/a.sqsh")))
    assert same.role_starts == same.runner == ()
    assert "--container-image=/images/a.sqsh" in same.flags
    differing = plan(job(TWO, container=Container(image="/images/b.sqsh")))
    assert not any("container-image" in flag for flag in differing.flags)
    assert "--container-image=/images/b.sqsh" in differing.runner
    assert "--container-image=/images/a.sqsh" in differing.role_starts[0].runner


def test_each_runtime_enters_the_image_of_the_role() -> None:
    (pyxis,) = plan(job(TWO)).role_starts
    assert pyxis.runner[:2] == ("bash", "-c")
    assert {"--overlap", "--container-image=/images/a.sqsh"} <= set(pyxis.runner)
    (builtin,) = plan(job(TWO), replace(SITE, container_runtime="builtin")).role_starts
    assert builtin.runner[-1] == "--"
    assert "--container-image=/images/a.sqsh" in builtin.runner
    (apptainer,) = plan(job(TWO), replace(SITE, container_runtime="apptainer")).role_starts
    assert "apptainer" in apptainer.runner
    assert "--nv" in apptainer.runner  # because of its own GPU
    assert apptainer.runner[-1] == "/images/a.sqsh"


def test_the_images_of_all_roles_are_removed_from_the_nodes() -> None:
    planned = plan(job(TWO, container=Container(image="/images/b.sqsh")), replace(SITE, container_runtime="builtin"))
    assert planned.closing[-3:] == ("--release", "/images/b.sqsh", "/images/a.sqsh")


def test_a_python_of_the_cluster_file_is_that_of_the_jobs_tasks() -> None:
    cluster = replace(SITE, python="/opt/python")
    on_host = plan(job(TWO), cluster)
    assert (on_host.python, on_host.role_starts[0].python) == ("/opt/python", IMAGE_PYTHON)
    mixed = {**TWO, "beside": Role(program=("z",), image="none")}
    in_image = plan(job(mixed, container=Container(image="/images/b.sqsh")), cluster)
    assert [in_image.python, *(one.python for one in in_image.role_starts)] == [
        *["/opt/python"] * 2,
        "/venv/bin/python",
    ]


def test_a_reference_of_a_role_becomes_the_file_that_submit_imports() -> None:
    roles = {"server": replace(TWO["server"], image="nvcr.io#nvidia/pyg:24.07-py3")}
    (start,) = plan(job(roles), replace(SITE, container_runtime="builtin", images="/shared/images")).role_starts
    assert start.view is not None
    assert start.view.image.startswith("/shared/images/")
    with pytest.raises(ConfigError, match=r"role\.server\.image: a registry must be followed by '#'"):
        plan(job({"server": replace(TWO["server"], image="nvcr.io/nvidia/pyg:24.07-py3")}))


def test_a_step_of_its_own_keeps_the_place_of_its_rank_and_no_token_in_its_arguments(tmp_path: Path) -> None:
    """A fake srun runs the command as Slurm would, with the variables of a step of one task."""
    srun, mark = tmp_path / "srun", tmp_path / "mark"
    srun.write_text(
        '#!/bin/bash\necho "asked: $*"; env | grep ^SLURM_ | sort | sed "s/^/given: /"\n'
        'while [[ $1 == --* ]]; do shift; done\nSLURM_PROCID=0 SLURM_NTASKS=1 exec "$@"\n'
    )
    srun.chmod(0o755)
    mark.touch()
    words = [word.replace(IMAGE_MARK, str(mark)) for word in step_runner(["--x=1"])]
    task = ["bash", "-c", 'echo "task: $SLURM_PROCID of $SLURM_NTASKS, $ODD, $0"', "an 'odd' word"]
    environment = {
        "PATH": f"{tmp_path}:/usr/bin:/bin",
        "SLURM_JOB_ID": "7",
        "SLURMD_NODENAME": "node3",
        "SLURM_PROCID": "5",
        "SLURM_NTASKS": "8",
        "SLURM_JOB_NAME": "a name; with $signs",
        "SLURM_JWT": "secret-token",
        "SLURM_CONF": "/etc/slurm.conf",
        "ODD": "a b",
    }
    shown = subprocess.run([*words, *task], env=environment, capture_output=True, text=True, check=True).stdout
    (asked,) = [line for line in shown.splitlines() if line.startswith("asked: ")]
    assert asked.startswith("asked: --jobid=7 --nodelist=node3 --nodes=1 --ntasks=1 ")
    assert " --x=1 " in asked
    assert "secret-token" not in asked
    given = [line for line in shown.splitlines() if line.startswith("given: ")]
    assert given == ["given: SLURM_CONF=/etc/slurm.conf", "given: SLURM_JWT=secret-token"]
    assert shown.splitlines()[-1] == "task: 5 of 8, a b, an 'odd' word"
    mark.unlink()
    outside = subprocess.run([*words, *task], env=environment, capture_output=True, text=True, check=False)
    assert outside.returncode == 66
    assert "not in its image: pyxis is not active on node node3" in outside.stderr

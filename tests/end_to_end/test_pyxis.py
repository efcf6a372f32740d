"""pyxis's flags on a real srun, with a plugin that accepts them and runs each task in its image.

The plugin (tests/support/spank/pyxis.c) parses options like pyxis, and fails with errors seen from pyxis and enroot.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from support.forked import assert_restarts_by_forking
from support.images import ThinImage
from support.recorded import recorded
from support.sandbox_fixture import Pyxis, RunningSandbox
from support.scenario import Stage, wait_until

from clusterctl.shared.record.layout import RunDir

SHAPE = "[resources]\nnodes = 2\ntasks_per_node = 2\n"


@pytest.fixture
def back_end() -> str:
    return "sandbox"


@pytest.fixture
def site(stage: Stage, pyxis: Pyxis) -> Stage:
    """A cluster with pyxis."""
    stage.environment["PATH"] = f"{pyxis.programs}:{stage.environment['PATH']}"
    (stage.folder / "cluster").mkdir()
    (stage.folder / "cluster" / "site.toml").write_text(
        'kind = "sandbox"\ncontainer_runtime = "pyxis"\npolling_floor = "1s"\n'
    )
    stage.cluster = "site"
    return stage


def command(image: ThinImage, program: str, shape: str = SHAPE) -> str:
    return f'workload = "command"\nargv = ["python", "-c", {json.dumps(program)}]\n{shape}{image.table}'


def host(run: RunDir, attempt: int) -> dict[str, Any]:
    path = run.attempt(attempt).host_json
    return dict(json.loads(path.read_text())) if path.exists() else {}


def warn(site: Stage, run: RunDir) -> None:
    """Signal every step of the job, as Slurm does before the time limit."""
    subprocess.run(["scancel", "--signal=USR2", site.job_id(run)], env=site.environment, check=True)


def requeue(site: Stage, run: RunDir) -> None:
    subprocess.run(["scontrol", "requeue", site.job_id(run)], env=site.environment, check=True)


def test_every_task_gets_the_scripts_flags_and_runs_in_the_image(
    site: Stage, pyxis: Pyxis, thin_image: ThinImage
) -> None:
    (site.folder / "helper.py").write_text("GREETING = 'hallo'\n")
    program = (
        "import helper, os, sys; print(helper.GREETING, os.environ['RANK'], sys.prefix, open('/srv/own.txt').read())"
    )
    run = site.submit(site.write_job("own", command(thin_image, program)), "--wait")
    for rank in range(4):
        assert f"hallo {rank} /opt/venv the image's own" in site.log(run, rank)
    got = {path.name: sorted(path.read_text().splitlines()) for path in pyxis.records.iterdir()}
    assert set(got) == {f"{site.job_id(run)}.0.{rank}" for rank in range(4)}
    lines = [line.strip().removesuffix(" \\").strip("'") for line in run.script.read_text().splitlines()]
    rendered = sorted(line for line in lines if line.startswith(("--container-", "--no-container-")))
    assert len(rendered) == 8
    assert all(flags == rendered for flags in got.values())


@pytest.mark.long
@pytest.mark.skipif(os.geteuid() != 0, reason="only root has nodes with mounts of their own")
def test_a_node_without_pyxis_beside_one_with_it_is_named(
    site: Stage, sandbox: RunningSandbox, pyxis: Pyxis, thin_image: ThinImage
) -> None:
    """There srun, which has the plugin, accepts the options, and slurmd, which has not, starts the task on the host."""
    program = "import os, time; print(os.path.exists('/srv/own.txt'), flush=True); time.sleep(60)"
    job = site.write_job("uneven", command(thin_image, program))
    with sandbox.without_plugins("node2"):
        run = site.submit(job)
        site.wait_for_state(run, "failed")
    found = json.loads(site.call("why", run.id, "--cluster", site.cluster, "-o", "json").stdout)
    assert (found["class"], found["certainty"]) == ("launch", "certain")
    assert found["cause"] == "not in its image: pyxis is not active on node node2"
    assert "False" not in "".join(site.log(run, rank) for rank in range(4) if run.attempt(0).log(rank).is_file())


@pytest.mark.long
@pytest.mark.parametrize("srun", ["srun", '"$real"', "exec srun", "bash -lc 'exec srun \"$@\"' srun"])
def test_a_batch_script_of_the_users_enters_an_image_however_it_calls_srun(
    site: Stage, thin_image: ThinImage, srun: str
) -> None:
    """Nothing of ours is needed in the image: no program before the task's own, and no task prolog."""
    flags = f"-n2 --container-image={thin_image.path} --container-mounts={','.join(thin_image.mounts)}"
    text = f"real=$(PATH=${{PATH#*:}} type -P srun)\n{srun} {flags} sh -c 'cat /srv/own.txt; env | grep -c PROLOG'\n"
    (site.folder / "own.sbatch").write_text(f"#!/bin/bash\n#SBATCH --nodes=2\n{text}")
    run = site.submit("./own.sbatch")
    site.wait_for_state(run, "failed")  # grep has found nothing
    done = site.call("logs", run.id, "--cluster", site.cluster)
    assert done.stdout.count("the image's own") == 2, done.stdout
    lines = [line.split()[-1] for line in done.stdout.splitlines()]
    assert lines.count("0") == 2, done.stdout


@pytest.mark.long
def test_signals_and_exit_codes_pass_through_and_a_requeue_restarts_in_the_image(
    site: Stage, pyxis: Pyxis, thin_image: ThinImage
) -> None:
    program = """
import os, signal, sys, time
attempt = os.environ["CLUSTERCTL_ATTEMPT"]
signal.signal(signal.SIGUSR2, lambda *_: sys.exit(print("warned", flush=True) or 7 * (attempt == "1")))
print("attempt", attempt, os.path.exists("/srv/own.txt"), flush=True)
time.sleep(600)
"""
    run = site.submit(site.write_job("again", command(thin_image, program, "")))

    def warn_when_up(attempt: int) -> None:
        wait_until(
            lambda: (
                run.attempt(attempt).log(0).is_file() and f"attempt {attempt} True" in site.log(run, 0, attempt=attempt)
            ),
            60,
        )
        warn(site, run)

    wait_until(lambda: run.attempt(0).log(0).is_file() and "attempt 0 True" in site.log(run, 0))
    requeue(site, run)
    warn_when_up(1)
    assert site.wait_for_state(run, "failed")["exit_code"] == 7
    assert site.log(run, 0, attempt=1).splitlines()[-1] == "warned"
    (end,) = [event for event in recorded(run.attempt(1), 0) if event["event"] == "exit"]
    assert end["code"] == 7
    wait_until(lambda: not pyxis.containers, 20, "the containers to be removed")


@pytest.mark.long
def test_a_warning_while_the_image_is_being_unpacked_requeues_the_run(
    site: Stage, pyxis: Pyxis, thin_image: ThinImage
) -> None:
    slow = pyxis.bring("slow")
    run = site.submit(site.write_job("warned", command(thin_image, "print('up')", "")))
    wait_until(lambda: pyxis.containers, 60, "the image to be unpacked")
    warn(site, run)
    wait_until(lambda: host(run, 0).get("requeued"), 60, "the requeue")
    slow.unlink()
    site.wait_for_state(run, "finished")
    assert "up" in site.log(run, 0, attempt=1)


@pytest.mark.long
def test_leftovers_of_an_earlier_start_are_removed_before_the_next(
    site: Stage, pyxis: Pyxis, thin_image: ThinImage
) -> None:
    pyxis.bring("keep")
    program = "import os, time; print('up', flush=True); time.sleep(600 * (os.environ['CLUSTERCTL_ATTEMPT'] == '0'))"
    run = site.submit(site.write_job("left", command(thin_image, program, "")))
    wait_until(lambda: run.attempt(0).log(0).is_file() and "up" in site.log(run, 0))
    assert pyxis.containers == {f"pyxis_{site.job_id(run)}.0"}
    requeue(site, run)
    site.wait_for_state(run, "finished", "failed")
    assert site.status(run)["stage"] == "finished", run.attempt(1).host_log.read_text()
    assert pyxis.containers == {f"pyxis_{site.job_id(run)}.3"}  # step 0 removed it, 1 ended leftovers, 2 is left out


@pytest.fixture
def held(site: Stage) -> Iterator[str]:
    """Two nodes, held for the test."""
    done = site.call(
        "alloc", site.write_job("held", f'workload = "command"\nargv = ["true"]\n{SHAPE}'), "--cluster", site.cluster
    )
    assert done.returncode == 0, done.stderr
    yield done.stdout.strip()
    given_back = site.call("alloc", "--cluster", site.cluster, "--end", done.stdout.strip())
    assert given_back.returncode in (0, 5), given_back.stderr  # 5: the test already has
    wait_until(lambda: not list((site.runs / ".warm").iterdir()), 20, "the holder to clean up")


@pytest.mark.long
def test_an_image_is_imported_once_and_removed_with_the_allocation(
    site: Stage, pyxis: Pyxis, held: str, thin_image: ThinImage
) -> None:
    """The image is imported once per held node; both runs use the container by name."""
    program = "import os; print('rank', os.environ['RANK'], open('/srv/own.txt').read())"
    job = site.write_job("boxed", command(thin_image, program))
    for _ in range(2):
        run = site.submit(job, "--in-allocation", held, "--wait")
        assert all(f"rank {rank} the image's own" in site.log(run, rank) for rank in range(4))
    (container,) = pyxis.containers
    name = container.removeprefix("pyxis_")
    assert name.startswith(f"clusterctl_{held}_")
    got = [path.read_text().splitlines() for path in pyxis.records.iterdir()]
    assert all(f"--container-name={name}" in flags for flags in got)
    assert sum(f"--container-image={thin_image.path}" in flags for flags in got) == 2
    assert len(got) == 2 + 2 * 4
    assert site.call("alloc", "--cluster", site.cluster, "--end", held).returncode == 0
    wait_until(lambda: not pyxis.containers, 20, "the holder to remove the image")


@pytest.mark.long
def test_a_training_starts_again_by_forking_if_its_job_asks_for_standbys(
    site: Stage, pyxis: Pyxis, thin_image: ThinImage
) -> None:
    """Their step has a container of its own, which is removed with it."""
    run = assert_restarts_by_forking(site, thin_image, "[restart]\nstandby = true\n")
    steps = {path.name.split(".")[1] for path in pyxis.records.iterdir()}
    assert len(steps) == 3, "the standbys, and the ranks of two starts"
    assert all(path.name.startswith(f"{site.job_id(run)}.") for path in pyxis.records.iterdir())
    wait_until(lambda: not pyxis.containers, 20, "the containers to be removed")


@pytest.mark.long
def test_a_partially_imported_image_is_not_used(site: Stage, pyxis: Pyxis, held: str, thin_image: ThinImage) -> None:
    job = site.write_job("boxed", command(thin_image, "pass"))
    full = pyxis.bring("full")
    failed = site.call("submit", job, "--cluster", site.cluster, "--in-allocation", held, "--wait")
    assert failed.returncode == 1
    why = site.call("why", failed.stdout.strip(), "--cluster", site.cluster)
    assert "no space to unpack the image on the node" in why.stdout
    full.unlink()
    site.submit(job, "--in-allocation", held, "--wait")
    got = [path.read_text().splitlines() for path in pyxis.records.iterdir()]
    assert len(got) == 2 + 4
    assert not any("half an image" in lines for lines in got)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--container-mounts=/a"], "invalid format: /a"),
        (["--container-mounts=/a:/b:ro:c"], "invalid flags"),
        (["--container-mounts=a:/b"], "source path is not absolute"),
        (["--container-image="], "argument required"),
        (["--container-writable", "--container-readonly"], "its opposite"),
        (["--container-image=a", "--container-image=b"], "specified multiple times"),
    ],
)
@pytest.mark.usefixtures("pyxis")
def test_the_plugin_refuses_what_pyxis_refuses(sandbox: RunningSandbox, flags: list[str], message: str) -> None:
    refused = sandbox.try_to("srun", "--nodes=1", *flags, "true")
    assert refused.returncode != 0
    assert message in refused.stderr


@pytest.mark.long
def test_doctor_checks_pyxis_and_the_image(site: Stage, thin_image: ThinImage) -> None:
    with (site.folder / "cluster" / "site.toml").open("a") as file:
        file.write(thin_image.table)
    done = site.call("doctor", "--cluster", "site", "-o", "json")
    checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    assert checks["containers"]["message"] == "srun has pyxis"
    assert checks["image"]["verdict"] == "OK"

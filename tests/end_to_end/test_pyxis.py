"""The flags for pyxis meet a real srun: a plugin that takes pyxis's options and runs each task in its image.

The plugin (tests/support/spank/pyxis.c) has pyxis's grammar; what it does not have is enroot.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from support.sandbox_fixture import RunningSandbox
from support.scenario import Stage, wait_until
from support.thin_image import ThinImage

from clusterctl.runs.files import read_lines
from clusterctl.runs.layout import RunDir

SHAPE = "[resources]\nnodes = 2\ntasks_per_node = 2\n"


@pytest.fixture
def back_end() -> str:
    return "sandbox"


@pytest.fixture
def site(stage: Stage, pyxis_records: Path) -> Stage:
    """A cluster with pyxis."""
    (stage.folder / "cluster").mkdir()
    (stage.folder / "cluster" / "site.toml").write_text(
        'kind = "sandbox"\ncontainer_runtime = "pyxis"\npolling_floor = "1s"\n'
    )
    stage.cluster = "site"
    return stage


def command(image: ThinImage, program: str, shape: str = SHAPE) -> str:
    return f'workload = "command"\nargv = ["python", "-c", {json.dumps(program)}]\n{shape}{image.table}'


def job_id(run: RunDir) -> str:
    return str(json.loads(run.submission_json.read_text())["job_id"])


def test_every_task_gets_the_flags_of_the_script_and_runs_in_the_image(
    site: Stage, pyxis_records: Path, thin_image: ThinImage
) -> None:
    (site.folder / "helper.py").write_text("GREETING = 'hallo'\n")
    program = (
        "import helper, os, sys; print(helper.GREETING, os.environ['RANK'], sys.prefix, open('/srv/own.txt').read())"
    )
    run = site.submit(site.write_job("own", command(thin_image, program)), "--wait")
    for rank in range(4):
        assert f"hallo {rank} /opt/venv the image's own" in site.log(run, rank)
    got = {path.name: sorted(path.read_text().splitlines()) for path in pyxis_records.iterdir()}
    assert set(got) == {f"{job_id(run)}.0.{rank}" for rank in range(4)}
    lines = [line.strip().removesuffix(" \\").strip("'") for line in run.script.read_text().splitlines()]
    rendered = sorted(line for line in lines if line.startswith(("--container-", "--no-container-")))
    assert len(rendered) == 8
    assert all(flags == rendered for flags in got.values())


@pytest.mark.long
def test_signals_and_exit_codes_pass_and_a_requeue_starts_again_in_the_image(
    site: Stage, pyxis_records: Path, thin_image: ThinImage
) -> None:
    program = """
import os, signal, sys, time
attempt = os.environ["CLUSTERCTL_ATTEMPT"]
signal.signal(signal.SIGUSR2, lambda *_: sys.exit(print("warned", flush=True) or 7 * (attempt == "1")))
print("attempt", attempt, os.path.exists("/srv/own.txt"), flush=True)
time.sleep(600)
"""
    run = site.submit(site.write_job("again", command(thin_image, program, "")))

    def warn(attempt: int) -> None:
        wait_until(
            lambda: (
                run.attempt(attempt).log(0).is_file() and f"attempt {attempt} True" in site.log(run, 0, attempt=attempt)
            ),
            60,
        )
        subprocess.run(["scancel", "--signal=USR2", job_id(run)], env=site.environment, check=True)

    wait_until(lambda: run.attempt(0).log(0).is_file() and "attempt 0 True" in site.log(run, 0))
    subprocess.run(["scontrol", "requeue", job_id(run)], env=site.environment, check=True)
    warn(1)
    assert site.wait_for_stage(run, "failed")["exit_code"] == 7
    assert site.log(run, 0, attempt=1).splitlines()[-1] == "warned"
    (end,) = [event for event in read_lines(run.attempt(1).events(0)) if event["event"] == "exit"]
    assert end["code"] == 7
    # Of rank 0 in each attempt; the second one's step 0 removes the container that the first may have left.
    assert {path.name for path in pyxis_records.iterdir()} == {f"{job_id(run)}.{step}.0" for step in (0, 1)}


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--container-mounts=/a"], "invalid format: /a"),
        (["--container-mounts=/a:/b:ro:c"], "invalid flags"),
        (["--container-mounts=a:/b"], "source path is not absolute"),
        (["--container-image="], "argument required"),
        (["--container-writable", "--container-readonly"], "its opposite"),
        (["--container-image=a", "--container-image=b"], "specified multiple times"),
    ],
)
def test_the_plugin_refuses_what_pyxis_refuses(
    sandbox: RunningSandbox, pyxis_records: Path, flags: list[str], said: str
) -> None:
    refused = sandbox.try_to("srun", "--nodes=1", *flags, "true")
    assert refused.returncode != 0
    assert said in refused.stderr


@pytest.mark.long
def test_doctor_looks_for_pyxis_and_into_the_image(site: Stage, thin_image: ThinImage) -> None:
    with (site.folder / "cluster" / "site.toml").open("a") as file:
        file.write(thin_image.table)
    done = site.call("doctor", "--cluster", "site", "-o", "json")
    checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    assert checks["containers"]["message"] == "srun has pyxis"
    assert checks["image"]["verdict"] == "OK"

"""Runs in an image built by `make container`: Cora trains to the same losses inside and outside."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.scenario import Stage

from clusterctl.launcher.containers import unpacked
from clusterctl.shared.record.files import read_lines
from clusterctl.shared.record.layout import RunDir


def losses(run: RunDir) -> list[float]:
    return [line["loss"] for line in read_lines(run.attempt(0).metrics) if "loss" in line]


@pytest.mark.long  # minutes to build
@pytest.mark.parametrize("back_end", ["emulator"], indirect=True)
def test_a_program_runs_in_a_built_image(stage: Stage, bare_image: Path) -> None:
    program = "import clusterctl, sys; print(sys.prefix, clusterctl.__file__)"
    job = f'workload = "command"\nargv = ["python", "-c", "{program}"]\n[resources]\nnodes = 2\n'
    run = stage.submit(
        stage.write_job("built", job), "--set", f"container.image={bare_image}", "--code", "image", "--wait"
    )
    unpacked.release(bare_image)
    library = "/opt/venv/lib/python3.11/site-packages/clusterctl/__init__.py"
    assert [stage.log(run, rank).splitlines()[-1] for rank in range(2)] == [f"/opt/venv {library}"] * 2


@pytest.mark.long
def test_cora_trains_to_the_same_losses_in_the_image_and_outside(stage: Stage, cpu_image: Path) -> None:
    inside = stage.submit("cora", "--set", f"container.image={cpu_image}", "--wait")
    outside = stage.submit("cora", "--wait")
    unpacked.release(cpu_image)
    assert "/opt/venv/bin/python" in inside.script.read_text()
    assert losses(inside) == pytest.approx(losses(outside), rel=1e-5)
    assert len(losses(inside)) > 10
    accuracies = [stage.status(run)["test_accuracy"] for run in (inside, outside)]
    assert accuracies[0] == pytest.approx(accuracies[1], abs=0.01)
    assert accuracies[0] > 0.8

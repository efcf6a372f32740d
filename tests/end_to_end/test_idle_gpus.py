"""A run whose GPUs are idle: noted while it runs, and ended if the job asks for it. NVML is a stand-in."""

from __future__ import annotations

import json

import pytest
from support.scenario import Stage

NVML = """
NVML_TEMPERATURE_GPU = 0
class NVMLError(Exception): pass
class Rates: gpu, memory = 1, 0
def refuse(*_): raise NVMLError
nvmlDeviceGetName = nvmlDeviceGetMemoryInfo = nvmlDeviceGetPowerUsage = nvmlDeviceGetTemperature = refuse
def nvmlInit(): pass
def nvmlDeviceGetCount(): return 2
def nvmlDeviceGetHandleByIndex(index): return index
def nvmlDeviceGetUUID(handle): return f"GPU-{handle}"
def nvmlDeviceGetUtilizationRates(handle): return Rates
"""
PROGRAM = """
import time
from clusterctl import runs
for step in range(1, 10_000):
    runs.log(step=step)
    time.sleep(0.2)
"""
JOB = """
workload = "command"
argv = ["python", "train.py"]
[resources]
nodes = 2
time = "10m"
[watchdog]
idle_gpu = "8s"
[env]
PYTHONPATH = "{stand_in}"
"""


@pytest.mark.long
def test_a_run_with_idle_gpus_is_ended_and_why_is_certain_of_the_cause(stage: Stage) -> None:
    stand_in = stage.folder / "stand_in"
    stand_in.mkdir()
    (stand_in / "pynvml.py").write_text(NVML)
    (stage.folder / "train.py").write_text(PROGRAM)
    run = stage.submit(stage.write_job("train", JOB.format(stand_in=stand_in)))
    status = stage.wait_for_state(run, "failed", seconds=240)
    assert (status["attempts"], status["step"] > 0) == (1, True)
    why = json.loads(stage.call("why", run.id, "--cluster", stage.cluster, "-o", "json").stdout)
    assert (why["class"], why["certainty"]) == ("idle-gpus", "certain")
    assert "all GPUs on all nodes were idle" in why["cause"]
    shown = stage.call("status", run.id, "--cluster", stage.cluster).stdout
    assert "all GPUs on all nodes were idle" in shown

"""The advice: each rule when it applies, and when it does not."""

from __future__ import annotations

from dataclasses import replace

from clusterctl.launcher.diagnosis.efficiency import Advice, GpuUse, Use, advise, input_share
from clusterctl.shared.spec.values import GpuCount

GOOD = Use(
    nodes=2,
    tasks_per_node=4,
    cpus_per_task=8,
    gpus_per_node=GpuCount(4),
    time_limit=7200.0,
    memory_asked=64 * 2**30,
    cpu_busiest=30.0,
    memory_highest=50 * 2**30,
    gpus=tuple(GpuUse(f"node{node}", number, 85.0) for node in (1, 2) for number in range(4)),
    split={"sampling": 0.1, "gathering": 0.1, "compute": 0.7, "communication": 0.1},
    larger_batch="train.batch_size=2048",
    sooner_checkpoint="checkpoint.every=300s",
    held=5400.0,
    longest=5400.0,
    finished=True,
)


def only(use: Use) -> Advice:
    (advice,) = advise(use)
    return advice


def test_a_run_that_used_what_it_requested_gets_no_advice() -> None:
    assert advise(GOOD) == []


def test_missing_measurements_give_no_advice() -> None:
    assert advise(replace(GOOD, gpus=(), split={}, cpu_busiest=None, memory_highest=None)) == []


def test_idle_gpus_are_reported_in_gpu_hours() -> None:
    idle = only(replace(GOOD, gpus=tuple(gpu._replace(percent=20.0) for gpu in GOOD.gpus)))
    assert idle.subject == "GPUs idle"
    assert "20 % of the time: 9.6 of 12.0 GPU hours were idle" in idle.text


def test_an_unused_gpu_is_named() -> None:
    unused = only(replace(GOOD, gpus=(*GOOD.gpus[:-1], GpuUse("node2", 3, 0.5))))
    assert "1 of 8 GPUs were idle: node2 gpu3." in unused.text
    assert unused.change == ""  # the other node needs all of them
    everywhere = tuple(gpu._replace(percent=0.5) if gpu.number == 3 else gpu for gpu in GOOD.gpus)
    assert only(replace(GOOD, gpus=everywhere)).change == "resources.gpus_per_node=3"


def test_unused_gpus_are_not_also_reported_as_idle() -> None:
    unused = only(replace(GOOD, gpus=tuple(gpu._replace(percent=0.0) for gpu in GOOD.gpus)))
    assert (unused.subject, unused.change) == ("GPUs unused", "resources.gpus_per_node=0")


def test_an_input_bound_step_gets_the_advice_to_request_more_cpus() -> None:
    bound = replace(GOOD, split={"sampling": 0.5, "gathering": 0.1, "compute": 0.4})
    assert input_share(bound) == 0.6
    assert only(bound) == Advice("Input-bound", only(bound).text, "resources.cpus_per_task=16")


def test_a_communication_bound_step_is_reported() -> None:
    assert only(replace(GOOD, split={"compute": 0.5, "communication": 0.5})).subject == "Communication"


def test_restarts_are_reported_in_gpu_hours() -> None:
    wasted = only(replace(GOOD, restarts=2, undone=600.0, restarting=120.0))
    assert wasted.text.startswith("2 restarts cost 1.6 GPU hours: 600 s of steps were repeated, and 120 s were")
    assert wasted.change == "checkpoint.every=300s"
    assert advise(replace(GOOD, restarts=1, undone=10.0)) == []


def test_unused_cpus_and_memory_are_reported_with_a_smaller_request() -> None:
    assert only(replace(GOOD, cpu_busiest=9.0)).change == "resources.cpus_per_task=3"
    assert only(replace(GOOD, memory_highest=10 * 2**30)).change == "resources.memory=13G"


def test_a_short_run_gets_no_advice_on_cpus_and_memory() -> None:
    short = replace(GOOD, held=60.0, cpu_busiest=1.0, memory_highest=1.0, finished=False)
    assert advise(short) == []


def test_an_excessive_time_limit_is_reported() -> None:
    assert only(replace(GOOD, longest=900.0, held=900.0)).change == "resources.time=25m"
    assert advise(replace(GOOD, longest=900.0, held=900.0, finished=False)) == []

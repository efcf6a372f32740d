"""Parsing the options of sbatch."""

from __future__ import annotations

import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.launcher.emulator.job_request import make_request, parse_time, script_options, spread
from clusterctl.shared.errors import SlurmError
from clusterctl.shared.spec.values import slurm_time


def request(**options):
    return make_request({name.replace("_", "-"): value for name, value in options.items()}, [], "job.sh", "/home/me")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 5400), ("0:05", 5), ("1:30", 90), ("02:00:03", 7203), ("1-2", 93600), ("1-02:03", 93780), ("0", None)],
)
def test_every_time_format_of_sbatch_is_parsed(text, seconds):
    assert parse_time(text) == seconds


@given(st.integers(1, 10**8))
def test_times_written_by_clusterctl_are_exact_to_the_second(seconds):
    assert parse_time(slurm_time(seconds)) == seconds


@given(st.text())
def test_any_text_is_a_time_or_a_slurm_error(text):
    try:
        assert parse_time(text) is None or parse_time(text) >= 0
    except SlurmError as refusal:
        assert "--time" in refusal.message


def test_directives_end_at_the_first_command():
    script = """#!/bin/bash
#SBATCH --job-name='a # b' --nodes=2 # a comment

# another comment
#SBATCH --chdir="/runs/it's $HOME"
echo start
#SBATCH --nodes=3
"""
    assert script_options(script) == {"job-name": "a # b", "nodes": "2", "chdir": "/runs/it's $HOME"}


def test_only_a_newline_ends_a_directive():
    assert script_options("#!/bin/sh\n#SBATCH --job-name='a\u2028b\x85c'\n") == {"job-name": "a\u2028b\x85c"}


def test_an_unbalanced_quote_is_rejected():
    with pytest.raises(SlurmError, match="Invalid directive"):
        script_options("#!/bin/sh\n#SBATCH --job-name='a\n")


def test_defaults_match_slurm():
    made = request()
    assert (made.name, made.nodes, made.tasks, made.output, made.folder) == (
        "job.sh",
        1,
        1,
        "slurm-%j.out",
        "/home/me",
    )
    assert made.requeue
    assert not made.append


@pytest.mark.parametrize(
    ("text", "warning"),
    [
        ("USR2@90", (signal.SIGUSR2, 90, False)),
        ("B:SIGTERM@5", (signal.SIGTERM, 5, True)),
        ("10", (signal.SIGUSR1, 60, False)),
    ],
)
def test_the_warning_signal_is_parsed(text, warning):
    made = request(signal=text)
    assert (made.warning_signal, made.warning_lead, made.warn_batch_only) == warning


@pytest.mark.parametrize(
    ("options", "gpus"),
    [
        ({"gpus_per_node": "2"}, (2, "")),
        ({"gpus_per_node": "a100:3"}, (3, "a100")),
        ({"gres": "gpu:2"}, (2, "")),
        ({"gres": "license:9,gpu:a100:4"}, (4, "a100")),
        ({"gres": "gpu"}, (1, "")),
        ({"gres": "disk:7"}, (0, "")),
    ],
)
def test_gpus_can_be_requested_in_two_ways(options, gpus):
    made = request(**options)
    assert (made.gpus_per_node, made.gpu_type) == gpus


@pytest.mark.parametrize(
    "options",
    [
        {"nodes": "two"},
        {"nodes": "0"},
        {"time": "soon"},
        {"signal": "X:USR1"},
        {"signal": "NOPE"},
        {"gpus_per_node": "all"},
    ],
)
def test_invalid_values_are_rejected(options):
    with pytest.raises(SlurmError):
        request(**options)


@pytest.mark.parametrize(("name", "value"), [("begin", "now"), ("reservation", "mine")])
def test_unsupported_options_are_rejected(name, value):
    with pytest.raises(SlurmError, match=f"does not support --{name.replace('_', '-')}"):
        request(**{name: value})


@given(st.integers(1, 100), st.integers(1, 100))
def test_tasks_are_spread_evenly(tasks, nodes):
    counts = spread(tasks, nodes)
    assert sum(counts) == tasks
    assert len(counts) == nodes
    assert max(counts) - min(counts) <= 1

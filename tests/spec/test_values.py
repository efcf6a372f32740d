"""Durations and bounds of job files."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.shared.spec.values import AtLeast, Duration, GpuCount, mebibytes, parse_seconds, plural, slurm_time


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 5400),
        ("90s", 90),
        ("20m", 1200),
        ("4h", 14400),
        ("2d", 172800),
        ("10:30", 630),
        ("01:30:00", 5400),
        ("1-00", 86400),
        ("1-06:30", 109800),
        ("1-00:00:00", 86400),
    ],
)
def test_durations_are_parsed_like_sbatch(text: str, seconds: int) -> None:
    assert parse_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "x", "4hx", "-5", "1:2:3:4", "1.5h", "٣", "1-", "infinite"])
def test_invalid_durations_fail_with_the_accepted_formats(text: str) -> None:
    with pytest.raises(ValueError, match="4h"):
        parse_seconds(text)


@given(st.integers(min_value=0, max_value=10**8))
def test_durations_written_for_slurm_parse_back(seconds: int) -> None:
    assert parse_seconds(slurm_time(seconds)) == seconds


@given(st.text())
def test_parsing_a_duration_raises_only_value_error(text: str) -> None:
    try:
        assert parse_seconds(text) >= 0
    except ValueError:
        pass


def test_a_bare_number_has_the_unit_of_its_key() -> None:
    assert Duration(60).parse(90) == 5400
    assert Duration(1).parse(90) == 90


@pytest.mark.parametrize(
    ("written", "number", "words"), [(4, 4, "4 GPUs"), ("a100:1", 1, "1 a100 GPU"), (0, 0, "0 GPUs")]
)
def test_gpu_counts_compare_as_numbers_and_print_their_type(written: int | str, number: int, words: str) -> None:
    gpus = GpuCount(written)
    assert (gpus, gpus.written, str(gpus), gpus.in_words) == (number, written, str(written), words)
    assert GpuCount(gpus).written == written


def test_changing_the_number_of_gpus_keeps_their_type() -> None:
    assert GpuCount("a100:4").of_same_type(2).written == "a100:2"
    assert GpuCount(4).of_same_type(2).written == 2
    assert GpuCount("a100:4").of_same_type(0).written == 0


def test_nan_fails_every_lower_bound() -> None:
    with pytest.raises(ValueError, match="at least 0"):
        AtLeast(0).check(float("nan"))


@pytest.mark.parametrize(("text", "size"), [("64G", 65536), ("1T", 1048576), ("2048K", 2), ("100", 100), ("5MB", 5)])
def test_sizes_are_parsed_like_sbatch(text: str, size: int) -> None:
    assert mebibytes(text) == size


def test_one_takes_no_plural() -> None:
    assert [plural(count, "node") for count in (0, 1, 4096)] == ["0 nodes", "1 node", "4,096 nodes"]

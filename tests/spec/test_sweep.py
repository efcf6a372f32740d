"""What a sweep varies: axes, lines of a file, grids and samples."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.shared.errors import UsageError
from clusterctl.shared.spec.sweep import combinations, filled, names_of_program, parse_axis, parse_lines


def grid(*axes: str) -> list[tuple[str, ...]]:
    return combinations([parse_axis(axis) for axis in axes], None, 0)


def drawn(samples: int, *axes: str, seed: int = 0) -> list[tuple[str, ...]]:
    return combinations([parse_axis(axis) for axis in axes], samples, seed)


def test_the_last_axis_changes_fastest() -> None:
    assert grid("train.lr=1e-3,1e-2", "train.seed=0..2") == [
        ("train.lr=1e-3", "train.seed=0"),
        ("train.lr=1e-3", "train.seed=1"),
        ("train.lr=1e-3", "train.seed=2"),
        ("train.lr=1e-2", "train.seed=0"),
        ("train.lr=1e-2", "train.seed=1"),
        ("train.lr=1e-2", "train.seed=2"),
    ]


@pytest.mark.parametrize(
    ("axis", "values"),
    [
        ("k=0..4", ["0", "1", "2", "3", "4"]),
        ("k=-2..2..2", ["-2", "0", "2"]),
        ("k=1,5..7,20", ["1", "5", "6", "7", "20"]),
        ("k=[10,5],[15,10]", ["[10,5]", "[15,10]"]),
        ('k="a,b",c', ['"a,b"', "c"]),
        ("k='a]',{a = 1, b = 2}", ["'a]'", "{a = 1, b = 2}"]),
        (" k = a , b ", ["a", "b"]),
        ("k=1.5..2", ["1.5..2"]),  # not a range of integers, so text
        ("env.X=a=b", ["a=b"]),
    ],
)
def test_values_are_split_at_commas_and_ranges_are_expanded(axis: str, values: list[str]) -> None:
    key = axis.partition("=")[0].strip()
    assert grid(axis) == [(f"{key}={value}",) for value in values]


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        (["train.lr"], "expected KEY=VALUES"),
        (["=1,2"], "expected KEY=VALUES"),
        (["train.lr="], "expected KEY=VALUES"),
        (["train.seed=0..2,1"], "1 appears twice"),
        (["train.seed=4..0"], "not a range of whole numbers"),
        (["train.seed=0..4..0"], "not a range of whole numbers"),
        (["train.seed=0..99999999999"], "not a range of whole numbers"),
        (["train.seed=0..999", "train.lr=0..99"], "a sweep of 100,000 runs"),
        (["train.lr=1,2", "train.lr=3"], "train.lr is swept twice"),
        (["train.lr=log:1e-4..1e-1"], "sampled at random"),
        (["train.lr=log:0..1"], "0..1"),
        (["train.lr=log:1..0.1"], "1..0.1"),
        (["train.lr=uniform:a..b"], "not numbers"),
        (["train.lr=uniform:0..inf"], "0..inf"),
    ],
)
def test_invalid_axes_are_rejected(axes: list[str], message: str) -> None:
    with pytest.raises(UsageError) as refused:
        grid(*axes)
    assert message in refused.value.message
    assert refused.value.hint


def test_a_malformed_axis_fails_without_repeating_its_value() -> None:
    with pytest.raises(UsageError) as refused:
        parse_axis("env.TOKEN hunter2")
    assert "hunter2" not in refused.value.text


def test_the_same_seed_draws_the_same_runs_without_duplicates() -> None:
    axes = ("train.lr=log:1e-4..1e-1", "train.layers=2..4", "train.dropout=uniform:0..0.5")
    first = drawn(50, *axes)
    assert first == drawn(50, *axes)
    assert first != drawn(50, *axes, seed=1)
    assert first[:20] == drawn(20, *axes)  # a larger sample extends the smaller one
    assert len(set(first)) == 50


def test_log_draws_cover_their_range_log_uniformly() -> None:
    rates = [float(row[0].partition("=")[2]) for row in drawn(400, "lr=log:1e-4..1e-1")]
    assert all(1e-4 <= rate <= 1e-1 for rate in rates)
    assert 0.4 < sum(rate < math.sqrt(1e-4 * 1e-1) for rate in rates) / 400 < 0.6


def test_integer_ends_draw_integers_including_both_ends() -> None:
    assert {row[0] for row in drawn(3, "k=uniform:1..3")} == {"k=1", "k=2", "k=3"}
    with pytest.raises(UsageError, match="only 3 different runs"):
        drawn(4, "k=uniform:1..3")


def test_more_samples_than_combinations_are_rejected() -> None:
    assert sorted(drawn(4, "a.b=1,2", "c.d=1,2")) == sorted(grid("a.b=1,2", "c.d=1,2"))
    with pytest.raises(UsageError, match="only 4 combinations"):
        drawn(5, "a.b=1,2", "c.d=1,2")


@pytest.mark.parametrize("samples", [0, -1])
def test_a_sample_has_at_least_one_run(samples: int) -> None:
    with pytest.raises(UsageError, match=f"`samples={samples}`: no runs"):
        drawn(samples, "a.b=1,2")


def test_a_file_has_one_run_per_line() -> None:
    lines = parse_lines("# two runs\ntrain.lr=1e-3 env.NAME='a b'  # small\n\ntrain.lr=1e-2\n", "runs.txt")
    assert combinations([lines], None, 0) == [("train.lr=1e-3", "env.NAME=a b"), ("train.lr=1e-2",)]
    assert len(combinations([parse_axis("train.seed=0..2"), lines], None, 0)) == 6


@pytest.mark.parametrize(
    ("text", "message"),
    [("", "names no runs"), ("# none\n", "names no runs"), ("a=1\nlr 3\n", "line 2"), ("a='1\n", "line 1: No closing")],
)
def test_an_invalid_file_is_rejected_with_the_line_number(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_lines(text, "runs.txt")


def test_names_that_are_not_keys_fill_placeholders_of_the_program() -> None:
    rows = grid("lr=1e-3,1e-2", "train.seed=0", "code=a")
    assert names_of_program(rows) == {"lr"}
    assert filled(["python", "t.py", "--lr={lr}", "{lr}x{}"], rows[1], {"lr"}) == [
        "python",
        "t.py",
        "--lr=1e-2",
        "1e-2x{}",
    ]
    with pytest.raises(UsageError, match="neither a job key nor in the program"):
        filled(["python", "t.py"], rows[0], {"lr"})


@given(st.text(max_size=40))
def test_any_axis_is_parsed_or_rejected_with_a_hint(text: str) -> None:
    try:
        combinations([parse_axis(text)], None, 0)
    except UsageError as error:
        assert error.hint

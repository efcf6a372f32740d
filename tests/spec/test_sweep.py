"""What a sweep varies: axes, lines of a file, grids and samples."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.errors import UsageError
from clusterctl.spec.sweep import combinations, filled, names_of_program, parse_axis, parse_lines


def grid(*axes: str) -> list[tuple[str, ...]]:
    return combinations([parse_axis(axis) for axis in axes], None, 0)


def drawn(samples: int, *axes: str, seed: int = 0) -> list[tuple[str, ...]]:
    return combinations([parse_axis(axis) for axis in axes], samples, seed)


def test_all_combinations_come_in_order_the_last_axis_changing_fastest() -> None:
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
        ("k=1.5..2", ["1.5..2"]),  # no range of whole numbers: a text
        ("env.X=a=b", ["a=b"]),
    ],
)
def test_values_are_parted_at_commas_and_ranges_are_counted(axis: str, values: list[str]) -> None:
    key = axis.partition("=")[0].strip()
    assert grid(axis) == [(f"{key}={value}",) for value in values]


@pytest.mark.parametrize(
    ("axes", "says"),
    [
        (["train.lr"], "expected KEY=VALUES"),
        (["=1,2"], "expected KEY=VALUES"),
        (["train.lr="], "expected KEY=VALUES"),
        (["train.seed=0..2,1"], "1 is there twice"),
        (["train.seed=4..0"], "no range of whole numbers"),
        (["train.seed=0..4..0"], "no range of whole numbers"),
        (["train.seed=0..99999999999"], "no range of whole numbers"),
        (["train.seed=0..999", "train.lr=0..99"], "a sweep of 100,000 runs"),
        (["train.lr=1,2", "train.lr=3"], "train.lr is swept twice"),
        (["train.lr=log:1e-4..1e-1"], "drawn from at random"),
        (["train.lr=log:0..1"], "0..1"),
        (["train.lr=log:1..0.1"], "1..0.1"),
        (["train.lr=uniform:a..b"], "not numbers"),
        (["train.lr=uniform:0..inf"], "0..inf"),
    ],
)
def test_axes_that_make_no_sense_are_refused(axes: list[str], says: str) -> None:
    with pytest.raises(UsageError) as refused:
        grid(*axes)
    assert says in refused.value.message
    assert refused.value.hint


def test_what_is_no_key_is_not_shown_as_it_may_be_a_secret() -> None:
    with pytest.raises(UsageError) as refused:
        parse_axis("env.TOKEN hunter2")
    assert "hunter2" not in refused.value.text


def test_the_same_seed_draws_the_same_runs_each_once() -> None:
    axes = ("train.lr=log:1e-4..1e-1", "train.layers=2..4", "train.dropout=uniform:0..0.5")
    first = drawn(50, *axes)
    assert first == drawn(50, *axes)
    assert first != drawn(50, *axes, seed=1)
    assert first[:20] == drawn(20, *axes)  # more of them are others besides
    assert len(set(first)) == 50


def test_draws_cover_their_range_evenly_in_the_logarithm() -> None:
    rates = [float(row[0].partition("=")[2]) for row in drawn(400, "lr=log:1e-4..1e-1")]
    assert all(1e-4 <= rate <= 1e-1 for rate in rates)
    assert 0.4 < sum(rate < math.sqrt(1e-4 * 1e-1) for rate in rates) / 400 < 0.6


def test_whole_ends_draw_whole_numbers_both_included() -> None:
    assert {row[0] for row in drawn(3, "k=uniform:1..3")} == {"k=1", "k=2", "k=3"}
    with pytest.raises(UsageError, match="only 3 different runs"):
        drawn(4, "k=uniform:1..3")


def test_as_many_samples_as_there_are_combinations_and_no_more() -> None:
    assert sorted(drawn(4, "a.b=1,2", "c.d=1,2")) == sorted(grid("a.b=1,2", "c.d=1,2"))
    with pytest.raises(UsageError, match="only 4 combinations"):
        drawn(5, "a.b=1,2", "c.d=1,2")


def test_a_file_has_a_run_on_each_line() -> None:
    lines = parse_lines("# two runs\ntrain.lr=1e-3 env.NAME='a b'  # small\n\ntrain.lr=1e-2\n", "runs.txt")
    assert combinations([lines], None, 0) == [("train.lr=1e-3", "env.NAME=a b"), ("train.lr=1e-2",)]
    assert len(combinations([parse_axis("train.seed=0..2"), lines], None, 0)) == 6


@pytest.mark.parametrize(
    ("text", "says"),
    [("", "names no runs"), ("# none\n", "names no runs"), ("a=1\nlr 3\n", "line 2"), ("a='1\n", "line 1: No closing")],
)
def test_a_file_that_names_no_settings_is_refused_by_its_line(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        parse_lines(text, "runs.txt")


def test_a_name_that_is_no_key_stands_in_the_program() -> None:
    rows = grid("lr=1e-3,1e-2", "train.seed=0", "code=a")
    assert names_of_program(rows) == {"lr"}
    assert filled(["python", "t.py", "--lr={lr}", "{lr}x{}"], rows[1], {"lr"}) == [
        "python",
        "t.py",
        "--lr=1e-2",
        "1e-2x{}",
    ]
    with pytest.raises(UsageError, match="no key of a job, and not in the program"):
        filled(["python", "t.py"], rows[0], {"lr"})


@given(st.text(max_size=40))
def test_nonsense_is_read_or_refused(text: str) -> None:
    try:
        combinations([parse_axis(text)], None, 0)
    except UsageError as error:
        assert error.hint

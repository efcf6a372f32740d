"""`clusterctl why` on recorded failures whose true causes are known."""

from __future__ import annotations

from support.failures import Figures, read_cases


def test_causes_of_recorded_failures_are_named_and_certain_is_a_promise() -> None:
    figures = Figures.of(read_cases())
    assert figures.certain_but_wrong == []
    assert [str(answer) for answer in figures.wrong] == []
    assert len(figures.certain) >= 182  # of 217 that can be: what recorded facts prove is not called likely


def test_each_case_has_its_own_name_and_many_have_look_alikes() -> None:
    cases = read_cases()
    assert len({case.name for case in cases}) == len(cases)
    assert sum(case.look_alike for case in cases) >= len(cases) / 3

"""Answers in pages: bounded, complete, and free of control characters."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.launcher.api.agents.tools import LIMIT, OUTPUT, Cursors, as_json, pages
from clusterctl.shared.errors import UsageError
from clusterctl.shared.record.plain_text import plain

SHORT = st.text(max_size=60)
NAMES = st.from_regex(r"[a-z_]{1,20}", fullmatch=True)  # of our own
VALUES = st.one_of(st.none(), st.booleans(), st.integers(), SHORT, st.dictionaries(SHORT, SHORT, max_size=4))
MANY = st.tuples(VALUES, st.sampled_from([0, 1, 250])).map(
    lambda drawn: [drawn[0]] * drawn[1]
)  # enough for several pages
ANSWERS = st.dictionaries(NAMES, VALUES | MANY | st.lists(VALUES, max_size=4), max_size=6)
LINES = st.tuples(SHORT, st.sampled_from([1, 300])).map(lambda drawn: drawn[0] * drawn[1])
PRINTED = st.lists(LINES, max_size=3).map("\n".join)


def clean(value: Any) -> Any:
    if isinstance(value, str):
        return "\n".join(map(plain, value.split("\n")))
    if isinstance(value, dict):
        return {plain(key): clean(item) for key, item in value.items()}
    return [clean(item) for item in value] if isinstance(value, list) else value


@given(ANSWERS, PRINTED)
def test_pages_are_bounded_and_together_are_the_answer(answer: dict[str, Any], printed: str) -> None:
    found = pages({**answer, OUTPUT: printed})
    assert all(len(as_json(page)) <= LIMIT - 100 for page in found)
    joined: dict[str, Any] = {}
    for page in found:
        for key, value in page.items():
            joined[key] = joined[key] + value if key in joined else value
    assert joined.pop(OUTPUT, "") == "".join(
        plain(line.rstrip("\n")) + "\n" * line.endswith("\n") for line in printed.splitlines(keepends=True)
    )
    assert joined == clean(answer)


@given(
    st.recursive(st.text(max_size=5000), lambda inner: st.lists(inner) | st.dictionaries(SHORT, inner), max_leaves=50)
)
def test_what_cannot_be_split_is_shortened_and_says_so(value: Any) -> None:
    (page,) = pages({"value": {"of": value}})
    text = as_json(page)
    assert len(text) <= LIMIT
    assert page["value"] == clean({"of": value}) or "more characters)" in text or "(shortened)" in text


def test_a_cursor_leads_through_the_same_answer_whatever_happens_to_the_run() -> None:
    cursors = Cursors()
    page = cursors.first({"runs": [{"id": f"run-{number}", "note": "x" * 100} for number in range(200)]})
    seen, left = [*page["runs"]], page["pages_left"]
    while "next_cursor" in page:
        again = cursors.more(page["next_cursor"])
        page = cursors.more(page["next_cursor"])
        assert page == again
        seen += page["runs"]
        left -= 1
    assert left == 0
    assert [one["id"] for one in seen] == [f"run-{number}" for number in range(200)]


@pytest.mark.parametrize("cursor", ["", "x", "x-1", "-1", "{name}-0", "{name}-99", "{name}-1 ", "{name}-١", "{name}"])
def test_a_cursor_of_no_answer_is_refused(cursor: str) -> None:
    cursors = Cursors()
    name = cursors.first({"runs": ["x" * 2000] * 9})["next_cursor"].partition("-")[0]
    with pytest.raises(UsageError, match="no such cursor"):
        cursors.more(cursor.format(name=name))


def test_only_the_newest_answers_are_kept() -> None:
    cursors = Cursors()
    found = [cursors.first({"runs": ["x" * 2000] * 9})["next_cursor"] for _ in range(40)]
    with pytest.raises(UsageError):
        cursors.more(found[0])
    assert cursors.more(found[-1])
    assert json.loads(as_json(cursors.more(found[-1])))

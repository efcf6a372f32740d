"""HTML that is safe against injection."""

from __future__ import annotations

from html.parser import HTMLParser

from hypothesis import given
from hypothesis import strategies as st

from clusterctl.launcher.display.plain import plain_lines
from clusterctl.launcher.display.report.markup import Markup, join, tag


class Read(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.data = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.data += data


TEXT = st.text(st.sampled_from("<>&\"'/= !-ab\x1b\u202e\n") | st.characters(), max_size=40)


@given(TEXT, TEXT)
def test_any_text_stays_text_and_any_attribute_stays_one(text: str, value: str) -> None:
    read = Read(tag("p", text, title=value))
    assert [name for name, _ in read.tags] == ["p"]
    assert list(read.tags[0][1]) == ["title"]
    assert read.data == plain_lines(text)


def test_markup_is_not_escaped_again() -> None:
    assert tag("p", tag("b", "1 < 2"), " & 3") == "<p><b>1 &lt; 2</b> &amp; 3</p>"
    assert isinstance(join(["<"]), Markup)
    assert tag("meta", charset="utf-8") == '<meta charset="utf-8">'
    assert tag("th", "x", class_=None, aria_label="y", width=1.5) == '<th aria-label="y" width="1.5">x</th>'

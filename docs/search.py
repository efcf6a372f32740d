"""A hook of mkdocs: readers who search for how to do something do not find why it was built that way."""

from __future__ import annotations

from typing import Any


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    if page.file.src_uri.startswith("decisions/") and not page.is_index:
        page.meta["search"] = {"exclude": True}
    return markdown

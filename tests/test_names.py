"""Class names are unique in the package."""

from __future__ import annotations

from collections import defaultdict

from support.sources import Source, source_of, sources


def shared_names(modules: dict[str, Source]) -> dict[str, list[str]]:
    """Class -> the modules that define it, if there are several."""
    places = defaultdict(list)
    for module, source in modules.items():
        for name in source.classes:
            places[name].append(module)
    return {name: found for name, found in places.items() if len(found) > 1}


def test_no_two_classes_share_a_name() -> None:
    assert shared_names({str(path): source for path, source in sources().items()}) == {}


def test_shared_names_include_nested_classes() -> None:
    texts = {"a.py": "class Row: pass", "b.py": "def f():\n    class Row: pass", "c.py": "class Other: pass"}
    assert shared_names({name: source_of(text) for name, text in texts.items()}) == {"Row": ["a.py", "b.py"]}

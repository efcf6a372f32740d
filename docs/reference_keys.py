"""The reference's pages of the keys of job and cluster files: one page a table, one heading a key."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from key_examples import example, fits, shipped_values
from reference_commands import escaped, option_texts, root  # beside this file

from clusterctl.spec import WORKLOADS, Cluster, Job
from clusterctl.spec.cluster import UserConfiguration
from clusterctl.spec.keys import FileKey, as_toml, cluster_schema, job_schema, keys_of
from clusterctl.spec.values import LARGEST

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from guide_index import GuideIndex

TITLES = {
    "job": "Job files, outside of tables",
    "cluster": "Cluster files, outside of tables",
    "config": "`config.toml` in your configuration folder",
}
INTRODUCTION = """# Keys of job and cluster files

A page for each table, a heading for each key; `clusterctl config keys` prints them all. A duration is a number of the
unit shown, or `"90s"`, `"20m"`, `"4h"`, `"2d"`, `"1-00:00:00"`. In `--set` a key is written in full:
`--set resources.nodes=2`.

| page | keys |
| --- | --- |
"""
TRAINING = {name for name, workload in WORKLOADS.items() if any(keys_of(workload.train))}


@dataclass
class Entry:
    """One key, in all the places that it may be written in."""

    path: str
    places: dict[str, FileKey] = field(default_factory=dict)
    """Workload, or kind of file -> the key there."""

    @property
    def anchor(self) -> str:
        """That of its heading: what GitHub and Python-Markdown make of it."""
        return self.path.replace(".", "")


def key_pages(guides: GuideIndex) -> dict[str, str]:
    """Name of the page -> its text."""
    shipped, schemas = list(shipped_values()), dict(_schemas())
    pages, rows = {}, []
    for name, entries in tables().items():
        title = TITLES.get(name, f"`[{name}]`")
        about = guides.naming(f"[{name}]", *(entry.path for entry in entries)) if name not in TITLES else []
        parts = [f"# {title}", *([f"Guides: {', '.join(about)}."] if about else [])]
        parts += [_described(entry, guides, shipped, schemas) for entry in entries]
        pages[f"{name}.md"] = "\n\n".join(parts) + "\n"
        links = ", ".join(f"[`{entry.path.split('.')[-1]}`]({name}.md#{entry.anchor})" for entry in entries)
        rows.append(f"| [{title}]({name}.md) | {links} |\n")
    return {"index.md": INTRODUCTION + "".join(rows), **pages}


def tables() -> dict[str, list[Entry]]:
    """Name of the page -> the keys on it."""
    found: dict[str, dict[str, Entry]] = {}
    for page, place, key in _all_keys():
        entry = found.setdefault(page, {}).setdefault(key.path, Entry(key.path))
        entry.places[place] = key
    return {page: list(entries.values()) for page, entries in found.items()}


def _all_keys() -> Iterator[tuple[str, str, FileKey]]:
    """Each key with its page and where it may be written."""
    for place, cls in (("job", Job), ("cluster", Cluster), ("config", UserConfiguration)):
        yield from ((key.path.rpartition(".")[0] or place, place, key) for key in keys_of(cls))
        if cls is Job:
            for name, workload in WORKLOADS.items():
                yield from (("train", name, key) for key in keys_of(workload.train, "train."))


def _described(
    entry: Entry, guides: GuideIndex, shipped: list[tuple[str, str, Any]], schemas: Mapping[tuple[str, str], Any]
) -> str:
    keys, option = entry.places, _options().get(entry.path)
    texts = _alike({place: escaped(key.description) for place, key in keys.items()})
    defaults = {place: f"`{as_toml(key.default)}`" for place, key in keys.items() if as_toml(key.default)}
    used = [Path(file).stem for file, path, _ in shipped if path == entry.path and fits(file, keys)]
    facts = {
        "Type": _by_place({place: _type(key, schemas.get((place, key.path), {})) for place, key in keys.items()}),
        "Default": _by_place(defaults),
        "Workloads" if entry.path.startswith("train.") else "Files": _places(keys),
        "Option": f"`clusterctl submit {option}`" if option and "job" in keys else "",
        "Used in": ", ".join(f"`{name}`" for name in used),
        "Guides": ", ".join(guides.naming(*words_for(entry.path))[:3]),
    }
    words = (
        "\n".join(texts) if len(texts) == 1 else "\n".join(f"- {', '.join(of)}: {text}" for text, of in texts.items())
    )
    lines = "\n".join(f"- **{label}**: {text}" for label, text in facts.items() if text)
    return "\n\n".join([f"## `{entry.path}`", words, lines, f"```toml\n{example(entry.path, keys, shipped)}\n```"])


def words_for(path: str) -> list[str]:
    """How a guide names the key; outside of tables its name alone may be any word."""
    return [path] if "." in path else [f"`{path}`", f"{path} ="]


def _alike(texts: Mapping[str, str]) -> dict[str, list[str]]:
    """Text -> the places that it is for."""
    alike: dict[str, list[str]] = {}
    for place, text in texts.items():
        alike.setdefault(text, []).append(place)
    return alike


def _by_place(texts: Mapping[str, str]) -> str:
    """The one text of all places, or each with those that it is for."""
    alike = _alike(texts)
    return (
        next(iter(alike), "")
        if len(alike) < 2
        else "; ".join(f"{text} ({', '.join(places)})" for text, places in alike.items())
    )


def _places(keys: Mapping[str, FileKey]) -> str:
    if set(keys) == TRAINING:
        return "all that train"
    return ", ".join({"config": "`config.toml`"}.get(place, place) for place in keys)


def _type(key: FileKey, schema: Mapping[str, Any]) -> str:
    kind = " or ".join(f"`{choice}`" for choice in key.kind.split(" | ")) if " | " in key.kind else key.kind
    bounds = [
        ("minimum", "at least"),
        ("exclusiveMinimum", "more than"),
        ("maximum", "at most"),
        ("exclusiveMaximum", "less than"),
    ]
    limits = [f"{words} {schema[name]}" for name, words in bounds if abs(schema.get(name, LARGEST)) != LARGEST]
    return ", ".join([kind, *limits])


def _schemas() -> Iterator[tuple[tuple[str, str], Any]]:
    """(place, key) -> its JSON schema."""
    job = job_schema()
    for place, schema in (("job", job), ("cluster", cluster_schema())):
        yield from (((place, path), one) for path, one in _leaves(schema))
    while "then" in job:
        workload = job["if"]["properties"]["workload"]["const"]
        yield from (((workload, path), one) for path, one in _leaves(job["then"]))
        job = job.get("else", {})


def _leaves(schema: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for name, one in schema.get("properties", {}).items():
        yield f"{above}{name}", one
        yield from _leaves(one, f"{above}{name}.")


@functools.cache
def _options() -> dict[str, str]:
    """Key -> the option of `submit` that sets it."""
    group, context = root()
    submit = group.get_command(context, "submit")
    found = {"name": "--name", "container.code": "--code"}
    for names, text in option_texts(submit, context):
        flag = names.split()[0].removeprefix("--").replace("-", "_")
        match = re.search(r"--set ([\w.]+)=", text)
        found.setdefault(match[1] if match else f"resources.{flag}", names)
    return found

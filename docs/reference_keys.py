"""The reference's pages of the keys of job and cluster files: one page a table, one heading a key."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reference_commands import escaped, option_texts, root  # beside this file

from clusterctl.spec import WORKLOADS, Cluster, Job
from clusterctl.spec.cluster import UserConfiguration
from clusterctl.spec.keys import FileKey, as_toml, cluster_schema, job_schema, keys_of
from clusterctl.spec.values import LARGEST

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from guide_index import GuideIndex

ROOT = Path(__file__).resolve().parents[1]
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
# Where neither a shipped file nor the description has an example.
EXAMPLES: dict[str, Any] = {
    "name": "baseline",
    "code": "~/projects/mine",
    "kind": "slurm",
    "cluster": "mycluster",
    "host": "login.site.edu",
    "account": "my-project",
    "qos": "normal",
    "env": {"OMP_NUM_THREADS": "4"},
    "python": "/shared/me/env/bin/python",
    "python_environments": ["/shared/me/env"],
    "srun_args": ["--cpu-bind=cores"],
    "remote_python": "/opt/python3.11/bin/python3",
    "images": "/shared/me/images",
    "slurm_conf": "/etc/slurm/slurm.conf",
    "local_scratch": "/scratch",
    "resources.partition": "gpu",
    "resources.account": "my-project",
    "resources.qos": "normal",
    "resources.reservation": "workshop",
    "resources.nodelist": "node[01-04]",
    "resources.exclude": "node07",
    "resources.deadline": "2030-01-31T08:00",
    "resources.licenses": "matlab:1",
    "resources.gpus_per_task": "1",
    "resources.gpu_bind": "none",
    "resources.switches": "1",
    "resources.comment": "for the paper",
    "resources.wckey": "graphs",
    "resources.mail_user": "me@site.edu",
    "resources.sbatch": {"hint": "nomultithread"},
    "resources.cpus_per_gpu": 8,
    "resources.mem_per_cpu": "4G",
    "resources.mem_per_gpu": "64G",
    "resources.nice": 100,
    "resources.warning": "5m",
    "container.workdir": "/workspace",
    "data.load": "mine:load",
    "watchdog.idle_gpu": "1h",
    "notify.command": ["./announce.sh"],
    "track.wandb": "my-project",
}


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
    shipped, schemas = list(_shipped_values()), dict(_schemas())
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
    used = [Path(file).stem for file, path, _ in shipped if path == entry.path and _fits(file, keys)]
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
    return "\n\n".join([f"## `{entry.path}`", words, lines, f"```toml\n{example(entry, shipped)}\n```"])


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


def _shipped_values() -> Iterator[tuple[str, str, Any]]:
    """(file, key, value) of the job and cluster files that come along."""
    for folder in ("jobs", "cluster"):
        for path in sorted((ROOT / folder).glob("*.toml")):
            yield from ((f"{folder}/{path.name}", *one) for one in _values(tomllib.loads(path.read_text())))


def _values(table: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in table.items():
        yield f"{above}{name}", value
        if isinstance(value, dict):
            yield from _values(value, f"{above}{name}.")


def _fits(file: str, places: Iterable[str]) -> bool:
    return ("cluster" in places) if file.startswith("cluster/") else bool(set(places) - {"cluster", "config"})


def example(entry: Entry, shipped: Iterable[tuple[str, str, Any]]) -> str:
    """A line that sets the key, under its table's name; a key of a training below a workload that has it."""
    place, key = next(iter(entry.places.items()))
    if entry.path in EXAMPLES:
        value = EXAMPLES[entry.path]
    else:
        used = ((file, value) for file, path, value in shipped if path == entry.path and _fits(file, entry.places))
        file, value = next(used, ("", None))
        place = _workload_of(file) if file.startswith("jobs/") else place
        value = next((one for one in (value, _quoted(key), _other_than_default(key)) if one not in (None, ())), None)
    if value in (None, [], {}):
        raise ValueError(f"no example for {entry.path} of {place}: add one to EXAMPLES")
    table, _, name = entry.path.rpartition(".")
    lines = [f'workload = "{place}"', ""] if table == "train" else []
    if isinstance(value, dict):
        return "\n".join([*lines, f"[{entry.path}]", *(f"{inner} = {as_toml(one)}" for inner, one in value.items())])
    return "\n".join([*lines, *([f"[{table}]"] if table else []), f"{name} = {as_toml(value)}"])


def _workload_of(file: str) -> str:
    return str(tomllib.loads((ROOT / file).read_text())["workload"])


def _other_than_default(key: FileKey) -> Any:
    if key.kind == "true or false":
        return not key.default
    return key.kind.split(" | ")[-1] if " | " in key.kind else key.default


def _quoted(key: FileKey) -> Any:
    """The example in its description, if there is one."""
    match = re.search(r'such as ("[^"]+"|\[[^\]]+\]|\d+)', key.description)
    value = tomllib.loads(f"value = {match[1]}")["value"] if match else None
    return [value] if key.kind == "list" and isinstance(value, str) else value

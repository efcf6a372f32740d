"""Shell completion within a few hundredths of a second: only from files, without click.

The commands are in `cli/commands.json`, the keys of `--set` in `schemas/job.json`; `make docs` writes both. Apart from
them, only the names in a few folders are read. The names of runs on another machine are cached here, and updated in the
background: `python -m clusterctl.launcher.api.completions CLUSTER` fetches them over the existing connection.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import stat
import sys
import time
from contextlib import suppress
from pathlib import Path

import clusterctl
from clusterctl.launcher.config.places import cache_folder, expanded, names, runs_at, user_config_folder
from clusterctl.launcher.observe.run_names import NEWEST, job_name, names_beginning, run_ids, submission
from clusterctl.shared.errors import ClusterctlError

TYPE_CHECKING = False  # like typing's
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any


Offers = dict[str, str]
"""A line of help for each word."""

FILES: Offers = {":file": ""}  # left to the shell
_PACKAGE = Path(clusterctl.__file__).parent
_MOST_RUNS = 200
_LARGEST_BYTES = 2**20
_PLAIN = re.compile(r"[\w.@=:/+-]+")  # words that need no quoting in a shell
_WORKLOAD = re.compile(r"""^workload\s*=\s*["']([\w-]+)["']""", re.MULTILINE)


def answer(shell: str, line: str, replaced: str) -> list[str]:
    """The lines for `shell`: completions of the last word of `line`, the command line up to the cursor.

    bash replaces only `replaced`, the part of that word after `=` or `:`.
    """
    *words, typed = split(line)
    found: Offers = {}
    with suppress(ClusterctlError, OSError, ValueError, KeyError):  # there is nowhere to show a message
        found = offers(_read("launcher/cli/commands.json"), words[1:], typed)
    if found == FILES:
        return [*FILES]
    fitting = {word: text for word, text in found.items() if word.startswith(typed) and _PLAIN.fullmatch(word)}
    kept = len(typed) - len(split(replaced)[-1]) if shell == "bash" else 0
    return [f"{word}\t{text}" if shell == "fish" else word[kept:] for word, text in fitting.items()]


def split(line: str) -> list[str]:
    """The words of an unfinished command line; the last one is empty after a blank."""
    lexer = shlex.shlex(line, posix=True)
    lexer.whitespace_split, lexer.commenters = True, ""
    words: list[str] = []
    try:
        words.extend(lexer)
    except ValueError:  # an open quote
        return [*words, lexer.token]
    return words if line[-1:].strip() else [*words, ""]


def offers(node: Mapping[str, Any], words: Sequence[str], typed: str) -> Offers:
    """Completions after `words` for the command `node`; they need not start with `typed`."""
    given: dict[str, str] = {}
    arguments: list[str] = []
    waiting = ""  # the option whose value comes next
    for word in words:
        options = node["options"]
        flag, equals, value = word.partition("=")
        if waiting:
            given[waiting], waiting = word, ""
        elif word == "--":
            return FILES if "program" in node else {}
        elif word.startswith("-"):
            option = options.get(flag, {})
            given[flag] = value
            waiting = flag if "value" in option and not equals and "optional" not in option else ""
        elif "commands" in node:
            if word not in node["commands"]:
                return {}
            node = node["commands"][word]
        else:
            arguments.append(word)
    options, kinds = node["options"], node.get("arguments", [])
    job = given.get("--for") or (arguments[0] if arguments and kinds[:1] == ["job"] else None)

    def values(kind: str | list[str] | None, typed: str) -> Offers:
        match kind:
            case list():
                return dict.fromkeys(kind, "")
            case "run" | "living":
                ids, folder = _runs(given.get("--cluster"))
                if kind == "living" and folder:
                    # Whether a failed run starts again, no single file shows.
                    over = ("finished.json", "cancel.json")
                    ids = [
                        run
                        for run in ids[:_MOST_RUNS]
                        if not any(os.path.lexists(folder / run / name) for name in over)
                    ]
                return dict.fromkeys(names_beginning(ids, typed, _MOST_RUNS), "")
            case "rank" | "metric":
                attempt = _newest_attempt(arguments[:1], given.get("--cluster"))
                find = _ranks if kind == "rank" else _metrics
                return dict.fromkeys(find(attempt) if attempt else [], "")
            case "cluster":
                return dict.fromkeys(sorted(names("cluster", Path.cwd())), "")
            case "job":
                return FILES if "/" in typed else dict.fromkeys(sorted(names("jobs", Path.cwd())), "")
            case "setting":
                return settings(_read("schemas/job.json"), typed, _workload(job))
            case "file":
                return FILES
        return {}

    flag, equals, value = typed.partition("=")
    if waiting:
        return values(options[waiting]["value"], typed)
    if typed.startswith("-") and equals:
        found = values(options.get(flag, {}).get("value"), value)
        return {f"{flag}={word}": text for word, text in found.items()}
    if typed.startswith("-"):
        return {name: option["help"] for name, option in options.items()}
    if "commands" in node:
        return {name: command["help"] for name, command in node["commands"].items()}
    position = len(arguments) if "repeats" not in node else min(len(arguments), len(kinds) - 1)
    return values(kinds[position], typed) if position < len(kinds) else {}


def settings(schema: Mapping[str, Any], typed: str, workload: str = "") -> Offers:
    """The keys of a job of `workload`, or of any, up to the `=`; after it the values, if they can be listed."""
    train = schema["properties"]["train"]  # of all workloads
    each: Mapping[str, Any] | None = schema
    while each:
        if each["if"]["properties"]["workload"]["const"] == workload:
            train = each["then"]["properties"]["train"]
            break
        each = each.get("else")
    keys = dict(_leaves({**schema["properties"], "train": train}))
    key, equals, _ = typed.partition("=")
    if not equals:
        return {name: of["description"] for name, of in keys.items()}
    of = keys.get(f"{key}=", {})
    listed: list[str] = next((one["enum"] for one in (of, *of.get("anyOf", ())) if "enum" in one), [])
    values = ["true", "false"] if of.get("type") == "boolean" else listed
    return {f"{key}={value}": "" for value in values}


def _leaves(properties: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """`resources.nodes=` and its schema; `env.` for a table with arbitrary keys."""
    for name, of in properties.items():
        if "properties" in of:
            yield from _leaves(of["properties"], f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}{'.' if 'propertyNames' in of else '='}", of


def _workload(job: str | None) -> str:
    if job:
        with suppress(ClusterctlError, OSError, ValueError, KeyError):
            found = _WORKLOAD.search(_text(_file("jobs", job)))
            return found[1] if found else ""
    return ""


def _runs(cluster: str | None) -> tuple[list[str], Path | None]:
    """The IDs of the runs of `cluster`, and their folder unless it is on another machine.

    Only as much of the cluster's file is read as is needed to find them.
    """
    chosen = cluster or os.environ.get("CLUSTERCTL_CLUSTER") or _toml(user_config_folder() / "config.toml", "cluster")
    file = _file("cluster", chosen) if chosen else None
    if chosen and file and (host := _toml(file, "host")):
        return far_names(chosen, host), None
    folder = runs_at(_toml(file, "runs") if file else None)
    return run_ids(folder), folder


def _newest_attempt(named: Sequence[str], cluster: str | None) -> Path | None:
    """The newest attempt's folder of the run that is named, or of the first such run of a sweep or a job."""
    ids, folder = _runs(cluster)
    for name in named if folder else ():
        for run in ids:
            if name == NEWEST or name in (run, submission(run), job_name(run)):
                attempts = Path(folder or "", run, "attempts")
                numbers = [int(number) for number in _listed(attempts) if number.isdecimal()]
                return attempts / str(max(numbers)) if numbers else None
    return None


def _ranks(attempt: Path) -> list[str]:
    """The ranks that have written a log."""
    found = {match[1] for name in _listed(attempt / "logs") if (match := re.fullmatch(r"rank_(\d+)\.out", name))}
    return [str(rank) for rank in sorted(map(int, found))]


def _metrics(attempt: Path) -> list[str]:
    """The names with fractions as values; whole numbers are counts."""
    found: set[str] = set()
    for line in _text(attempt / "metrics.jsonl").splitlines():
        with suppress(ValueError):  # the last line may be torn
            values = json.loads(line)
            found |= {name for name, value in values.items() if isinstance(value, float) and name != "time"}
    return sorted(found)


def _listed(folder: Path) -> list[str]:
    with suppress(FileNotFoundError, NotADirectoryError):
        return os.listdir(folder)  # noqa: PTH208 - faster
    return []


def _file(kind: str, name: str) -> Path:
    """The file of a job or a cluster. It may be owned by another user: it is only read for completions."""
    return expanded(name) if "/" in name or name.endswith(".toml") else names(kind, Path.cwd())[name]


def _toml(path: Path, key: str) -> str | None:
    if not path.is_file():
        return None
    import tomllib  # late: not needed without such a file

    value = tomllib.loads(_text(path)).get(key)
    return value if isinstance(value, str) else None


def _text(path: Path) -> str:
    """The beginning of a file that anyone may have made: completion neither waits for a named pipe nor reads gigabytes.

    Like runs.files.read_beginning, but importing that package would take longer than all of this.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        return os.read(descriptor, _LARGEST_BYTES).decode() if stat.S_ISREG(os.fstat(descriptor).st_mode) else ""
    finally:
        os.close(descriptor)


def _read(name: str) -> Any:
    return json.loads((_PACKAGE / name).read_text())


_NEW_SECONDS = 10.0
_PATIENCE_SECONDS = 1.0  # how long completion waits if nothing is cached yet


def far_names(cluster: str, host: str) -> list[str]:
    """The recent IDs of the runs of `cluster`, newest first.

    Without an open connection to `host` nothing is fetched: completion cannot prompt for a password.
    """
    kept = _kept(cluster)
    age = float("inf")
    with suppress(OSError):
        age = time.time() - kept.stat().st_mtime
    if age > _NEW_SECONDS:
        from clusterctl.launcher.remote.ssh import socket_of

        if socket_of(host).exists():
            import subprocess

            from clusterctl.shared.record.interpreter import environment, with_packages

            subprocess.Popen(  # `main`, in the background: it may take longer than anyone waits for a completion
                with_packages(sys.executable, "-m", __name__, cluster),
                env=environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            deadline = time.monotonic() + (_PATIENCE_SECONDS if age == float("inf") else 0)
            while time.monotonic() < deadline and not kept.exists():
                time.sleep(0.02)
    with suppress(OSError, ValueError):
        return [name for name in json.loads(kept.read_text()) if isinstance(name, str)]
    return []


def _kept(cluster: str) -> Path:
    import hashlib

    name = hashlib.sha256(os.fsencode(os.path.abspath(cluster) if "/" in cluster else cluster)).hexdigest()[:16]  # noqa: PTH100
    return cache_folder() / "remote" / "names" / f"{name}.json"


def main(cluster: str) -> None:
    """Cache the names of the runs of `cluster`."""
    from clusterctl.launcher.api.remote.cluster import remote_cluster
    from clusterctl.launcher.api.remote.operations import ask, understood
    from clusterctl.launcher.observe.run_names import is_run_id
    from clusterctl.shared.record.files import write_json
    from clusterctl.shared.record.ownership import make_private

    kept = _kept(cluster)
    make_private(kept.parent)
    with suppress(FileNotFoundError):
        os.utime(kept)  # so that the next Tab fetches nothing
    if place := remote_cluster(cluster):
        names = understood(place, "find:names", ask(place, "find:names", {"cluster": cluster}, person=False))
        write_json(kept, [name for name in names if is_run_id(name)])  # the shell inserts them into the command line


if __name__ == "__main__":
    main(sys.argv[1])

"""Run a workload under torchrun or as a single process, without Slurm and without a run directory.

torchrun --standalone --nproc-per-node 4 -m clusterctl.workloads.NAME [JOB.toml] [KEY=VALUE ...]
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusterctl.errors import ClusterctlError, ConfigError, NotFoundError
from clusterctl.runs.events import Context
from clusterctl.runs.files import read_whole
from clusterctl.spec import Job, from_record, to_record
from clusterctl.spec.keys import parse_override, put

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def run_alone(workload: str, main: Callable[[Context], None]) -> None:
    """Run `main` with the job that the command line describes; user errors become a message and an exit code."""
    try:
        main(Context(to_record(job_from_words(workload, sys.argv[1:]))))
    except ClusterctlError as error:
        print(error.text, file=sys.stderr)
        raise SystemExit(error.exit_code) from None


def job_from_words(workload: str, words: Sequence[str]) -> Job:
    """The job from a file, if the first word names one, and from KEY=VALUE words, with the rules of `submit --set`."""
    words = list(words)
    record: dict[str, Any] = {"name": workload, "workload": workload}
    if words and "=" not in words[0]:
        record |= _read_file(Path(words.pop(0)))
    for word in words:
        put(record, *parse_override(word, record["workload"]))
    if record["workload"] != workload:
        raise ConfigError(f"the job's workload is {record['workload']}, but this program runs {workload}")
    return from_record(Job, record, parse=True)


def _read_file(path: Path) -> dict[str, Any]:
    try:
        record = tomllib.loads(read_whole(path).decode())
    except OSError as error:
        raise NotFoundError(f"cannot read job file {path}: {error.strerror}") from None
    except ValueError as error:  # invalid TOML or UTF-8
        raise ConfigError(f"{path}: {error}") from None
    data = record.get("data")
    if isinstance(data, dict) and isinstance(data.get("root"), str):
        data["root"] = str(path.parent.resolve() / data["root"])
    return {"name": path.stem, **record}

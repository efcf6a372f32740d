"""Run a workload under torchrun or as a single process, without Slurm and without a run directory.

torchrun --standalone --nproc-per-node 4 -m clusterctl.train WORKLOAD [JOB.toml] [KEY=VALUE ...]
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusterctl.engine import workloads
from clusterctl.shared.errors import ClusterctlError, ConfigError, NotFoundError, UsageError
from clusterctl.shared.node.events import Context
from clusterctl.shared.record.files import read_whole
from clusterctl.shared.spec import WORKLOADS, Job, from_record, to_record
from clusterctl.shared.spec.keys import parse_override, put

if TYPE_CHECKING:
    from collections.abc import Sequence


def main() -> None:
    """Run the workload that the command line names; user errors become a message and an exit code."""
    try:
        workload, words = sys.argv[1] if sys.argv[1:] else "", sys.argv[2:]
        if workload not in WORKLOADS or workload == "command":
            known = ", ".join(name for name in WORKLOADS if name != "command")
            raise UsageError(f"no such workload: {workload or '(none given)'}", f"one of {known}")
        job = job_from_words(workload, words)
        if problems := [f"{key}: {problem}" for key, problem in job.train.contradictions(workload, job.data)]:
            raise ConfigError("; ".join(problems))  # as at submission: a key without effect is not ignored in silence
        workloads.main(Context(to_record(job)))
    except ClusterctlError as error:
        print(error.text, file=sys.stderr)
        raise SystemExit(error.exit_code) from None


def job_from_words(workload: str, words: Sequence[str]) -> Job:
    """The job from a file, if the first word names one, and from KEY=VALUE words, with the rules of `submit --set`."""
    words = list(words)
    record: dict[str, Any] = {"name": workload, "workload": workload}
    if words and "=" not in words[0]:
        path = Path(words.pop(0))
        try:
            of_file = tomllib.loads(read_whole(path).decode())
        except OSError as error:
            raise NotFoundError(f"cannot read job file {path}: {error.strerror}") from None
        except ValueError as error:  # invalid TOML or UTF-8
            raise ConfigError(f"{path}: {error}") from None
        data = of_file.get("data")
        if isinstance(data, dict) and isinstance(data.get("root"), str):
            data["root"] = str(path.parent.resolve() / data["root"])
        record |= {"name": path.stem, **of_file}
    for word in words:
        put(record, *parse_override(word, record["workload"]))
    if record["workload"] != workload:
        raise ConfigError(f"the job's workload is {record['workload']}, but this program runs {workload}")
    return from_record(Job, record, parse=True)


if __name__ == "__main__":
    main()

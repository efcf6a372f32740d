"""Sending a large project to a login node over ssh: `submit` compared with `rsync -a`, over the same master connection.

The first submission, one without changes, and one with a changed line. Each creates a run with a snapshot of the code;
rsync updates one folder and keeps no earlier state. Prints the time and the bytes sent up and down the link.

python benchmarks/far_code.py [--files 50000] [--kilobytes 2] [--runs 3]
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter, sleep

from side_by_side import arguments

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from support.far import Far, made
from support.scenario import CLUSTERCTL

FOLDERS = 500
JOB = 'workload = "command"\nargv = ["true"]\n'


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--files", type=int, default=50_000)
    parser.add_argument("--kilobytes", type=int, default=2)
    parser.add_argument("--runs", type=int, default=3)
    asked = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as shared,
        made(Path(shared), through_relay=True) as far,
    ):
        measure(far, asked.files, asked.kilobytes, asked.runs)


def measure(far: Far, files: int, kilobytes: int, runs: int) -> None:
    far.write_cluster(f'kind = "emulator"\nruns = "{far.folder}/runs"\n')
    project = far.folder / "project"
    write_project(project, files, kilobytes)
    environment, answer = far.environment, ["--large-code"] if files > 20_000 else []
    status = [CLUSTERCTL, "status", "--cluster", "far"]
    subprocess.run(status, env=environment, check=True, capture_output=True)  # uploads clusterctl
    (socket,) = (path for path in (far.folder / "here" / "run").glob("*/*") if path.is_socket())
    ssh = shlex.join([str(far.folder / "here" / "bin" / "ssh"), "-S", str(socket)])
    ours = [CLUSTERCTL, "submit", "./job.toml", "--hold", "--cluster", "far", *answer]
    theirs = ["rsync", "-a", "--delete", "-e", ssh, f"{project}/", f"far:{far.folder}/copy/"]
    print(f"{files} files of {kilobytes} kB in {FOLDERS} folders; seconds, bytes up, bytes down")
    for what in ("first", *["unchanged"] * runs, *["a line changed"] * runs):
        if what == "a line changed":
            with (project / "0" / "0.py").open("a") as file:
                file.write("# changed\n")
        found = [cost(far, words, project) for words in (ours, theirs)]
        ratio = found[0][0] / found[1][0]
        shown = "   ".join(f"{seconds:6.1f} s {up:12,} {down:10,}" for seconds, up, down in found)
        print(f"  {what:<16} {shown}   ratio {ratio:.2f}")


def write_project(project: Path, files: int, kilobytes: int) -> None:
    for number in range(files):
        path = project / str(number % FOLDERS) / f"{number // FOLDERS}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"# {os.urandom(kilobytes * 500).hex()}\n")  # compresses by half at most
    (project / "job.toml").write_text(JOB)


def cost(far: Far, words: list[str], project: Path) -> tuple[float, int, int]:
    """The seconds that a command takes, and the bytes sent up and down."""
    before = passed(far)
    began = perf_counter()
    subprocess.run(words, cwd=project, env=far.environment, check=True, capture_output=True)
    seconds = perf_counter() - began
    after = passed(far)
    return seconds, after["up"] - before["up"], after["down"] - before["down"]


def passed(far: Far) -> dict[str, int]:
    sleep(0.3)  # until the relay has counted everything
    return dict(json.loads((far.link / "passed").read_text()))


if __name__ == "__main__":
    main()

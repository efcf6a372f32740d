"""Environments from lock files: many submissions at once build one, and a warm submission costs little more than none.

Submissions of the same new lock start together on one emulator and hold their runs; the environments that were built
are counted. Then held submissions with the environment, which exists, are compared with ones without it; aim: at most
1 s more.

python benchmarks/environments.py [--submissions 50] [--runs 5]
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from side_by_side import Timed, arguments, compare

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))
from support.environments import make_index, make_wheel, uv_lock

MOST_SECONDS = 1.0
JOB = 'workload = "command"\nargv = ["true"]\nenvironment = "uv.lock"\n'


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--submissions", type=int, default=50)
    parser.add_argument("--runs", type=int, default=5, help="pairs of warm submissions")
    options = parser.parse_args()
    count = options.submissions
    with tempfile.TemporaryDirectory() as name:
        folder, project = Path(name), Path(name, "project")
        project.mkdir()
        os.environ |= {"XDG_STATE_HOME": f"{name}/state", "CLUSTERCTL_RUNS": f"{name}/runs"}
        wheels = [make_wheel(folder, f"package{number}", "1.0") for number in range(20)]
        (project / "uv.lock").write_text(uv_lock(make_index(folder / "simple", wheels), wheels))
        (project / "job.toml").write_text(JOB)
        clusterctl = str(Path(sys.executable).with_name("clusterctl"))
        submit = [clusterctl, "submit", "--cluster", "local", "--hold"]

        def begin(*words: str) -> subprocess.Popen[str]:
            pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
            return subprocess.Popen([*submit, *words], cwd=project, **pipes)

        def seconds_of(*words: str) -> float:
            began = time.perf_counter()
            one = begin(*words)
            _, errors = one.communicate()
            if one.returncode:
                raise SystemExit(errors)
            return time.perf_counter() - began

        began = time.perf_counter()
        asking = [begin("./job.toml") for _ in range(count)]
        errors = [one.communicate()[1] for one in asking]
        seconds = time.perf_counter() - began
        failed = [text for one, text in zip(asking, errors, strict=True) if one.returncode]
        builds = sum("building the environment" in text for text in errors)
        print(f"{count} submissions at once: {builds} build, {len(failed)} failed, {seconds:.1f} s", *failed[:1])
        taken: dict[str, list[float]] = {"with an environment": [], "without": []}

        def timed(side: str, *words: str) -> tuple[str, Timed]:
            def once() -> float:
                taken[side].append(seconds_of(*words))
                return taken[side][-1]

            return side, once

        warm, plain = timed("with an environment", "./job.toml"), timed("without", "--", "true")
        compare("a warm submission", warm, plain, bound=None, runs=options.runs)
        more = statistics.median(one - other for one, other in zip(*(of[1:] for of in taken.values()), strict=True))
        verdict = "reached" if more <= MOST_SECONDS else "NOT reached"
        print(f"  with an environment, it takes {more:.2f} s more   aim: at most {MOST_SECONDS:g} s, {verdict}")
        runs = [path.name for path in Path(name, "runs").iterdir() if (path / "run.json").exists()]
        subprocess.run([clusterctl, "cancel", "--yes", "--cluster", "local", *runs], check=True, capture_output=True)


if __name__ == "__main__":
    main()

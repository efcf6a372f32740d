"""A sweep of 1,000 runs: its submission compared with submitit's job array, and the cost of its `status`.

Both submit a held array of 1,000 elements to the same emulator. Ours checks every run and creates its directory;
submitit pickles 1,000 calls. Then the Slurm commands of a submission of one run and of 1,000 runs are counted, and
`status` of the sweep is timed.

python benchmarks/sweep.py [--runs 1000]
"""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from side_by_side import arguments, compare

from clusterctl.launcher.config import load_cluster, state_folder
from clusterctl.launcher.emulator.install import ensure_stand_ins

JOB = 'workload = "command"\nargv = ["true"]\n[resources]\nnodes = 1\n'
PLAIN = """\
import os
import sys

import submitit

executor = submitit.SlurmExecutor(folder=sys.argv[1])
executor.update_parameters(job_name="plain", nodes=1, time=60, additional_parameters={"hold": True})
print(executor.map_array(os.system, ["true"] * int(sys.argv[2]))[0].job_id)
"""
COMMANDS = ("sbatch", "squeue", "scancel", "scontrol", "sinfo", "srun")


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--runs", type=int, default=1000)
    runs = str(parser.parse_args().runs)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # so that changed modules are compiled only in the warm-up
        os.environ |= {"XDG_STATE_HOME": f"{name}/state", "XDG_CACHE_HOME": f"{name}/cache"}
        os.environ["CLUSTERCTL_RUNS"] = f"{name}/runs"
        stand_ins = ensure_stand_ins(state_folder(), load_cluster("local").emulator)
        (folder / "plain.py").write_text(PLAIN)
        (folder / "project").mkdir()
        (folder / "project" / "job.toml").write_text(JOB)
        environment = {**os.environ, "PATH": f"{stand_ins}:{os.environ['PATH']}"}
        clusterctl = str(Path(sys.executable).with_name("clusterctl"))
        submit = [clusterctl, "submit", "./job.toml", "--cluster", "local", "--hold"]
        sweep = [*submit, "--sweep", f"env.N=1..{runs}"]

        def seconds_of(words: list[str]) -> float:
            began = time.perf_counter()
            subprocess.run(words, cwd=folder / "project", env=environment, stdout=subprocess.DEVNULL, check=True)
            return time.perf_counter() - began

        def submitted(words: list[str]) -> float:
            seconds = seconds_of(words)
            queue = [str(stand_ins / "squeue"), "--me", "-h", "-O", "ArrayJobID:"]
            jobs = subprocess.run(queue, capture_output=True, text=True, check=True).stdout.split()
            subprocess.run([str(stand_ins / "scancel"), *sorted(set(jobs))], check=True)
            return seconds

        before = cpu_seconds()
        submitted(sweep)
        print(f"one of them takes {cpu_seconds() - before:.2f} s of CPU time")
        rival = [sys.executable, str(folder / "plain.py"), str(folder / "plain"), runs]
        compare(
            f"Submission of {runs} runs",
            ("clusterctl submit --sweep", lambda: submitted(sweep)),
            ("submitit's map_array", lambda: submitted(rival)),
            bound=10.0,
            runs=5,
        )
        calls = [slurm_calls(words, folder, environment) for words in (submit, sweep)]
        print(f"Slurm's commands: {calls[0]} for one run, {calls[1]} for {runs} (aim: at most 3 times as many)")
        seconds_of([*sweep, "-o", "json"])
        began = cpu_seconds()
        looks = sorted(seconds_of([clusterctl, "status", "@last", "--cluster", "local"]) for _ in range(5))
        cpu = (cpu_seconds() - began) / 5
        seconds = f"{looks[2]:.2f} s, {looks[0]:.2f} to {looks[-1]:.2f}"
        print(f"status of the sweep: {seconds}, CPU {cpu:.2f} s (aim: under 1 s)")


def cpu_seconds() -> float:
    """The CPU seconds of all commands so far."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def slurm_calls(words: list[str], folder: Path, environment: dict[str, str]) -> int:
    """The number of Slurm commands started until `words` end. The emulator's supervisor keeps running, detached."""
    calls = folder / "calls"
    calls.unlink(missing_ok=True)
    traced = ["strace", "-f", "-q", "-I", "2", "-e", "trace=execve", "-o", str(calls), *words]
    with subprocess.Popen(traced, cwd=folder / "project", env=environment, stdout=subprocess.DEVNULL) as strace:
        while not re.match(r"(\d+) [^\0]*^\1 +\+\+\+ exited with 0", text := read(calls), re.MULTILINE):
            if strace.poll() is not None:
                raise SystemExit(f"strace ended with {strace.returncode}")
            time.sleep(0.1)
        strace.terminate()
    return sum(f'/{command}"' in line and "= 0" in line for line in text.splitlines() for command in COMMANDS)


def read(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""


if __name__ == "__main__":
    main()

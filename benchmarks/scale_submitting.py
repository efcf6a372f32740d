"""The cost of submissions: copying a large project compared with `cp -r`, and many in a row compared with plain sbatch.

The project has 50,000 files and 2 GB in 500 folders. It is copied for the first time, without changes, and with a
changed line; CPU seconds, opened files and stored bytes are printed.
The submissions are held jobs, submitted through the API in one process, to the same sbatch as the plain ones: the
emulator's, or with --sandbox that of a real Slurm on this machine (needs root and Slurm's packages).

python benchmarks/scale_submitting.py [--files 50000] [--megabytes 2000] [--submits 200] [--sandbox]
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from side_by_side import arguments

if TYPE_CHECKING:
    from collections.abc import Callable

CLUSTERCTL = str(Path(sys.executable).with_name("clusterctl"))
JOB = 'workload = "command"\nargv = ["true"]\n'
SCRIPT = "#!/bin/sh\n#SBATCH --hold\ntrue\n"
FOLDERS = 500
opened: list[str] = []


def main() -> None:
    words = arguments(__doc__)
    words.add_argument("--files", type=int, default=50_000)
    words.add_argument("--megabytes", type=int, default=2000)
    words.add_argument("--submits", type=int, default=200)
    words.add_argument("--sandbox", action="store_true")
    options = words.parse_args()
    sys.addaudithook(lambda event, what: opened.append(str(what[0])) if event == "open" else None)
    with tempfile.TemporaryDirectory(prefix="submit-", dir="/tmp") as name:
        folder = Path(name)
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # otherwise changed modules are compiled in each call
        os.environ |= {f"XDG_{kind}_HOME": f"{name}/{kind}" for kind in ("STATE", "CACHE", "CONFIG")}
        os.environ["CLUSTERCTL_RUNS"] = f"{name}/runs"
        if options.files:
            copies(folder, options.files, options.megabytes)
        if options.submits:
            cluster = "sandbox" if options.sandbox else "local"
            if options.sandbox:
                subprocess.run([CLUSTERCTL, "sandbox", "up", "--nodes", "2"], check=True, capture_output=True)
            try:
                submissions(folder, options.submits, cluster)
            finally:
                if options.sandbox:
                    subprocess.run([CLUSTERCTL, "sandbox", "down"], check=True, capture_output=True)


def copies(folder: Path, files: int, megabytes: int) -> None:
    from clusterctl.launcher.submission.snapshot import find_code, take_snapshot

    project, runs = folder / "project", folder / "runs"
    write_project(project, files, megabytes * 10**6 // files)
    time.sleep(3)  # files modified in the last seconds are always read again
    print(f"{files} files, {megabytes} MB{'':<18}{'wall s':>8}{'CPU s':>8}{'opened':>9}{'stored':>11}", flush=True)
    os.sync()
    show("cp -r", folder / "copy", lambda: subprocess.run(["cp", "-r", project, folder / "copy"], check=True))
    os.sync()  # keep the copy: after a removal, ext4 skips the freed inodes one by one for seconds

    def snapshot() -> None:
        take_snapshot(find_code(runs, project, large=True))

    for title in ("first snapshot", "nothing changed", "one line changed"):
        if title == "one line changed":
            (project / "0" / "0.py").write_text("changed\n")
        show(title, runs, snapshot)


def show(title: str, target: Path, work: Callable[[], object]) -> None:
    before, began, used = disk_bytes(target), time.perf_counter(), cpu()
    del opened[:]
    work()
    seconds, used = time.perf_counter() - began, cpu() - used
    count = sum(1 for path in opened if "/project/" in path)
    stored = (disk_bytes(target) - before) / 1e6
    print(f"  {title:<36}{seconds:>8.2f}{used:>8.2f}{count:>9}{stored:>8.1f} MB", flush=True)


def submissions(folder: Path, count: int, cluster: str) -> None:
    from clusterctl.launcher.api.submitting.start import submit
    from clusterctl.launcher.config import load_cluster
    from clusterctl.launcher.slurm import Slurm

    project = folder / "small"
    project.mkdir()
    (project / "job.toml").write_text(JOB)
    (project / "plain.sh").write_text(SCRIPT)
    slurm = Slurm.of(load_cluster(cluster))
    command, environment = [slurm.path_of("sbatch"), str(project / "plain.sh")], slurm.environment

    def plain() -> None:
        subprocess.run(command, env=environment, cwd=project, check=True, capture_output=True)

    def ours() -> None:
        submit(project / "job.toml", cluster, hold=True)

    ours(), plain()
    print(f"{count} submissions in a row, {cluster:<16}{'wall s':>8}{'CPU s':>8}{'per s':>10}", flush=True)
    rates = []
    for title, work in (("sbatch", plain), ("clusterctl.submit", ours)):
        began, used = time.perf_counter(), cpu()
        for _ in range(count):
            work()
        seconds = time.perf_counter() - began
        rates.append(count / seconds)
        print(f"  {title:<36}{seconds:>8.2f}{cpu() - used:>8.2f}{rates[-1]:>10.1f}", flush=True)
    print(f"  rate of plain sbatch: {rates[1] / rates[0]:.2f}   aim: at least 0.5")
    words = [CLUSTERCTL, "submit", str(project / "job.toml"), "--hold", "--cluster", cluster]
    with ThreadPoolExecutor(20) as pool:
        codes = list(pool.map(lambda _: subprocess.run(words, check=False, capture_output=True).returncode, range(20)))
    print(f"  20 at once: {codes.count(0)} submitted")
    jobs = subprocess.run([slurm.path_of("squeue"), "--me", "-h", "-O", "JobID:"], env=environment, capture_output=True)
    subprocess.run([slurm.path_of("scancel"), *jobs.stdout.decode().split()], env=environment, check=True)


def write_project(project: Path, files: int, size: int) -> None:
    for number in range(files):
        folder = project / str(number % FOLDERS)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number}.py").write_bytes(f"{number}\n".encode() + os.urandom(size // 2) * 2)


def disk_bytes(folder: Path) -> int:
    """The disk usage of `folder`, counting hard links once."""
    if not folder.exists():
        return 0
    printed = subprocess.run(["du", "-s", "-B1", folder], check=True, capture_output=True, text=True).stdout
    return int(printed.split()[0])


def cpu() -> float:
    """The CPU time of this process and its ended children."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


if __name__ == "__main__":
    main()

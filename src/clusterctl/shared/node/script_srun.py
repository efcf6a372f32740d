"""The first srun on the PATH of a user's batch script: it becomes the real srun, which starts the tasks through ours.

Everything is passed on, and nothing of ours reaches a task through its environment. Only the program's name is
preceded by `script_task`, in the same folder, and only where that changes nothing for the task
(docs/decisions/batch-scripts.md): options that it does not know pass untouched.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from pathlib import Path

TYPE_CHECKING = False  # like typing's
if TYPE_CHECKING:
    from typing import NoReturn

# The options of srun(1), of 20.11 and later: `=` needs a value, `?` may have one after `=`, `/N` is the short form.
OPTIONS = """
    account=/A accel-bind= acctg-freq= begin=/b chdir=/D cluster-constraint= clusters=/M comment= compress?
    constraint=/C contiguous core-spec=/S cores-per-socket= cpu-bind= cpu-freq= cpus-per-gpu= cpus-per-task=/c
    deadline= delay-boot= dependency=/d disable-status/X distribution=/m epilog= error=/e exact exclude=/x
    exclusive? export= extra-node-info=/B gpu-bind= gpu-freq= gpus=/G gpus-per-node= gpus-per-socket= gpus-per-task=
    gres= gres-flags= hint= hold/H immediate?/I input=/i interactive job-name=/J jobid= kill-on-bad-exit?/K label/l
    licenses=/L mail-type= mail-user= mem= mem-bind= mem-per-cpu= mem-per-gpu= mincpus= mpi= msg-timeout= network=
    nice? no-allocate/Z no-kill?/k nodefile= nodelist=/w nodes=/N ntasks=/n ntasks-per-core= ntasks-per-gpu=
    ntasks-per-node= ntasks-per-socket= open-mode= output=/o overcommit/O overlap oversubscribe/s partition=/p
    power= preserve-env/E priority= profile= prolog= propagate? qos=/q quiet/Q quit-on-interrupt reboot relative=/r
    resv-ports? reservation= signal= slurmd-debug= sockets-per-node= spread-job switches= thread-spec= threads=/T
    threads-per-core= time=/t time-min= tmp= treewidth= tres-bind= tres-per-task= use-min-nodes verbose/v wait=/W
    wckey= whole
"""
_FORMS = [word.partition("/") for word in OPTIONS.split()]
KINDS = {name.rstrip("=?"): name[-1] for name, _, _ in _FORMS}
LETTERS = {letter: name.rstrip("=?") for name, _, letter in _FORMS if letter}
# Variables that mean the same as options which change what a task's output is, or where the task starts.
_ASIDE = re.compile(r"SLURM_UNBUFFEREDIO|SLURM_(?:MULTI_PROG|BCAST|CONTAINER)|PYXIS_CONTAINER_")


def main(own: str, words: list[str]) -> NoReturn:
    folder = Path(own).absolute().parent
    entries = (entry.partition(b"=") for entry in Path("/proc/self/environ").read_bytes().split(b"\0"))
    environment = {name: value for name, equals, value in entries if equals}
    path = [place for place in environment.get(b"PATH", b"").split(b":") if place != os.fsencode(folder)]
    environment[b"PATH"] = b":".join(path)
    found = program_at(words)
    attempt = attempt_of(folder.parent, environment.get(b"SLURM_JOB_ID", b"").decode())
    if found and attempt and not starts_elsewhere(environment):
        place, start = found
        start = start or os.fsdecode(environment.get(b"SLURM_WORKING_DIR", b""))
        program = resolved(words[place], str(Path.cwd() / start), path)
        environment.setdefault(b"SLURM_JOB_NAME", os.fsencode(Path(program).name))  # srun's own default for a step
        words = [*words[:place], str(folder / "task"), str(attempt), program, *words[place + 1 :]]
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)  # Python ignores them, and an exec would keep that
    for real in (Path(os.fsdecode(place)) / "srun" for place in path):
        if real.is_file() and os.access(real, os.X_OK):
            if environment.get(b"_") == os.fsencode(own):  # bash's note of what it has started
                environment[b"_"] = os.fsencode(real)
            os.execve(real, ["srun", *words], environment)
    os.write(2, b"srun: command not found\n")
    os._exit(127)


def resolved(program: str, folder: str, path: list[bytes]) -> str:
    """The program as srun passes it on: found in PATH, else in the folder of the step, which precedes `./x`, too."""
    if program.startswith("."):
        return f"{folder}/{program}"
    if program.startswith("/"):
        return program
    for place in [*map(os.fsdecode, path), folder]:
        candidate = Path(place) / program
        if candidate.is_file() and os.access(candidate, os.X_OK):
            return f"{place}/{program}"
    return program


def starts_elsewhere(environment: dict[bytes, bytes]) -> bool:
    """Whether a variable puts the tasks into a container, or their output elsewhere."""
    patterns = (environment.get(name, b"") for name in (b"SLURM_STDOUTMODE", b"SLURM_STDERRMODE"))
    return any(_ASIDE.match(os.fsdecode(name)) for name in environment) or any(b"%" in pattern for pattern in patterns)


def program_at(words: list[str]) -> tuple[int, str] | None:
    """Where the program is in srun's arguments, and the step's folder if it is one of them.

    None if there is no program, or if its tasks must start untouched.
    """
    place, folder = 0, ""
    while place < len(words) and (word := words[place]).startswith("-"):
        place += 1
        if word == "--":
            break
        found = _long(word) if word.startswith("--") else _short(word)
        if found is None:
            return None
        name, value, takes_next = found
        if takes_next:
            value, place = (words[place] if place < len(words) else ""), place + 1
        if name == "chdir":
            folder = value
        if name in ("output", "error") and "%" in value:  # a file of the task's own is its stdout itself
            return None
    return (place, folder) if place < len(words) and ":" not in words else None


def _long(word: str) -> tuple[str, str, bool] | None:
    """The name of a long option, its value, and whether that is the next word; None if it is not known here."""
    typed, equals, value = word[2:].partition("=")
    matches = [typed] if typed in KINDS else [name for name in KINDS if name.startswith(typed)]
    return (matches[0], value, KINDS[matches[0]] == "=" and not equals) if len(matches) == 1 else None


def _short(word: str) -> tuple[str, str, bool] | None:
    """The same for a word of short options, of which only the last one may have a value."""
    for position, letter in enumerate(word[1:], 2):
        name, rest = LETTERS.get(letter), word[position:]
        if name is None:
            return None
        if KINDS[name] == "=" or (KINDS[name] == "?" and rest):
            return name, rest, KINDS[name] == "=" and not rest
    return ("", "", False) if word[1:] else None


def attempt_of(run: Path, job: str) -> Path | None:
    """The attempt that this job has begun: a script may submit another one, which inherits its PATH."""
    try:
        numbers = sorted(int(path.name) for path in (run / "attempts").iterdir() if path.name.isdecimal())
        attempt = run / f"attempts/{numbers[-1]}"
        record = json.loads((attempt / "host.json").read_text())
        return attempt if record["job_id"] == job else None
    except (OSError, ValueError, LookupError, TypeError):
        return None


if __name__ == "__main__":
    main(sys.argv[0], sys.argv[1:])

"""A user's own batch script: how `submit` recognises one, and what its `#SBATCH` lines ask for.

sbatch parses the lines itself. They are parsed here, too, because options that are filled in from elsewhere must not
override them: sbatch's command line wins over its lines. A line that only sbatch understands is left to sbatch.
"""

from __future__ import annotations

import re
import shlex
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, NamedTuple

from clusterctl.launcher.config.client_data import client_data
from clusterctl.launcher.config.places import expanded, names
from clusterctl.launcher.config.program import LONGEST_NAME
from clusterctl.shared.errors import ConfigError, UsageError
from clusterctl.shared.node.script_srun import program_at
from clusterctl.shared.record.files import read_beginning
from clusterctl.shared.spec import SCRIPT
from clusterctl.shared.spec.values import as_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_LARGEST_BYTES = 4 * 2**20  # sbatch's own limit (max_script_size)
_MAGIC = re.compile(r"#(?:SBATCH|PBS|BSUB)")
# The options of sbatch(1): `=` needs a value, `?` may have one after `=`, `/N` is the short form.
_OPTIONS = """
    account=/A acctg-freq= array=/a batch= bb= bbf= begin=/b chdir=/D cluster-constraint= clusters=/M comment=
    constraint=/C container= container-id= contiguous core-spec=/S cores-per-socket= cpu-freq= cpus-per-gpu=
    cpus-per-task=/c deadline= delay-boot= dependency=/d distribution=/m error=/e exclude=/x exclusive? export=
    export-file= extra= extra-node-info=/B get-user-env? gid= gpu-bind= gpu-freq= gpus=/G gpus-per-node=
    gpus-per-socket= gpus-per-task= gres= gres-flags= help/h hint= hold/H ignore-pbs input=/i job-name=/J
    kill-on-invalid-dep= licenses=/L mail-type= mail-user= mcs-label= mem= mem-bind= mem-per-cpu= mem-per-gpu= mincpus=
    network= nice? no-kill?/k no-requeue nodefile=/F nodelist=/w nodes=/N ntasks=/n ntasks-per-core= ntasks-per-gpu=
    ntasks-per-node= ntasks-per-socket= open-mode= output=/o overcommit/O oversubscribe/s parsable partition=/p power=
    prefer= priority= profile= propagate? qos=/q quiet/Q reboot requeue reservation= share signal= sockets-per-node=
    spread-job switches= test-only thread-spec= threads-per-core= time=/t time-min= tmp= tres-bind= tres-per-task= uid=
    usage use-min-nodes verbose/v version/V wait/W wait-all-nodes= wckey= wrap=
"""
_FORMS = [word.partition("/") for word in _OPTIONS.split()]
KINDS = {name.rstrip("=?"): name[-1] for name, _, _ in _FORMS}
LETTERS = {letter: name.rstrip("=?") for name, _, letter in _FORMS if letter}
# They would keep `submit` from getting the ID of one job at once; each with a hint.
UNSUPPORTED = {
    "clusters": "remove it, and choose the cluster with `cluster=`",
    "test-only": "remove it, and type: clusterctl submit SCRIPT --dry-run=slurm",
    "wait": "remove it, and type: clusterctl submit SCRIPT --wait",
}
# Starts of tasks that the srun of ours, first on PATH, does not see.
_UNSEEN = re.compile(
    r"""((?<![\w.~$}])/[\w./-]*/srun\b)|(\b(?:ba|z|k)?sh\s+(?:-\w*l\w*|--login)\b)|(?:^|[\s;&|(])(mpirun|mpiexec)(?=\s)"""
)
# What may change PATH, or has another one.
_OTHER_PATH = re.compile(
    r"""(?:^|[\s;&|("'])(?:source|\.|eval|module|ml|conda|mamba|micromamba|spack|pixi|uv|poetry|pipenv|apptainer|singularity|"""
    r"""docker|podman|enroot|shifter|charliecloud|ch-run)\s|--container|--image|\bPATH="""
)
_PYTHONS = re.compile(r"(?:^|[\s;&|(])(python[\d.]*|torchrun|deepspeed|accelerate)(?=\s)")
_SRUN = re.compile(r"(?:^|[\s;&|(])srun\s+([^;&|()`]*)")
_TELLING = re.compile(r"--container|--pty|--unbuffered|--multi-prog|--bcast|-u$|.*%")
OF_ENVIRONMENT = {"SBATCH_CLUSTERS": "clusters", "SBATCH_WAIT": "wait"}


class Directive(NamedTuple):
    """An option in the script's `#SBATCH` lines, by its long name, and its line number."""

    name: str
    value: str
    line: int


@dataclass(frozen=True)
class UserScript:
    """A script as submitted: its path as typed, its bytes with surrogate escapes, and its arguments."""

    place: str
    text: str
    arguments: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name of its file."""
        return PurePath(self.place).name

    @property
    def asked(self) -> dict[str, Directive]:
        """What its lines ask for, by option; the last one of several wins, as with sbatch."""
        return {one.name: one for one in directives(self.text)}

    def job_name(self, environment: Mapping[str, str]) -> str:
        """The name that sbatch would give its job."""
        line = self.asked.get("job-name")
        return environment.get("SBATCH_JOB_NAME") or (line.value if line else "") or self.name

    def run_name(self, environment: Mapping[str, str]) -> str:
        """The name of its run: that of its job, or its file's without the suffix."""
        name = self.job_name(environment)
        return as_name(PurePath(name).stem if name == self.name else name)[:LONGEST_NAME] or SCRIPT

    def check(self) -> None:
        """Raise ConfigError for what sbatch would refuse with a riddle, and for what a run cannot have."""
        first = self.text.partition("\n")[0]
        if "\r\n" in self.text:
            hint = f"sed -i 's/\\r$//' {shlex.quote(self.place)}"
            raise ConfigError(f"{self.place}: DOS line breaks (\\r\\n), which sbatch refuses", hint)
        if "\0" in self.text:
            raise ConfigError(f"{self.place}: contains a NUL byte, which sbatch refuses", "is it a text file?")
        if not first[2:].strip():
            raise ConfigError(f"{self.place}:1: no interpreter after #!", "begin it with: #!/bin/bash")
        for one in self.asked.values():
            if one.name in UNSUPPORTED:
                message = f"{self.place}:{one.line}: `#SBATCH --{one.name}` is not supported"
                raise ConfigError(message, UNSUPPORTED[one.name])
        for number, line in _lines(self.text):
            if re.match(r"#SBATCH\s+(?:het|pack)job\b", line):
                message = f"{self.place}:{number}: heterogeneous jobs are not supported"
                raise ConfigError(message, "submit it with sbatch itself")
            if placeholder := re.search(r"<[A-Za-z][^<>\n]*>", line):
                message = f"{self.place}:{number}: still has a placeholder: {placeholder[0]}"
                raise ConfigError(message, "put a value in its place, or remove the line")


def find_script(name: str, cwd: Path) -> Path | None:
    """The batch script that `name` refers to: a file that begins with `#!`; None for anything else.

    A name that a job has means the job. A Python program counts only if it has `#SBATCH` lines. Raises UsageError for a
    file that looks like a batch script but has no `#!` at its beginning.
    """
    if client := client_data():
        sent = client.sent.job
        return Path(sent.path) if sent and sent.text.startswith("#!") and not name.endswith(".toml") else None
    if name.endswith(".toml") or ("/" not in name and name in names("jobs", cwd)):
        return None
    path = cwd / expanded(name)
    try:
        start = read_beginning(path, 2**16)
    except (OSError, ValueError):
        return None
    if start.startswith(b"#!"):
        return path if path.suffix != ".py" or re.search(rb"^#SBATCH\b", start, re.MULTILINE) else None
    if path.suffix in (".sh", ".sbatch", ".slurm", ".job", ".pbs") or re.search(rb"^#SBATCH\b", start, re.MULTILINE):
        what = "begins with a byte order mark" if start.startswith(b"\xef\xbb\xbf") else "does not begin with #!"
        what = "begins with a blank line" if not start.partition(b"\n")[0].strip() else what
        raise UsageError(
            f"{name}: {what}, so sbatch would refuse it", "its first line must be, for example: #!/bin/bash"
        )
    return None


def read_script(path: Path, place: str, arguments: tuple[str, ...] = ()) -> UserScript:
    """The script at `path`, typed as `place`, checked. Raises ConfigError."""
    client = client_data()
    try:
        sent = (client.text(path) if client else None) or ""
        content = sent.encode(errors="surrogateescape") or read_beginning(path, _LARGEST_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}", f"see: ls -l {shlex.quote(str(path))}") from error
    if len(content) > _LARGEST_BYTES:
        raise ConfigError(f"{path}: larger than 4 MiB", "Slurm accepts no larger batch script")
    script = UserScript(place, content.decode(errors="surrogateescape"), arguments)
    script.check()
    return script


def unseen_starts(text: str) -> list[tuple[int, str]]:
    """The lines of a script that start tasks whose ranks are not seen, as far as its text shows, and by what."""
    found, lines = list[tuple[int, str]](), text.split("\n")
    for number, line in enumerate(lines, 1):
        if number > 1 and line.lstrip().startswith("#"):
            continue
        for following in lines[number:]:
            if not line.endswith("\\"):
                break
            line = f"{line[:-1]} {following}"
        word = next(filter(None, match.groups()), "") if (match := _UNSEEN.search(line)) else _untouched(line)
        found += [(number, word)] if word else []
    return found


def _untouched(line: str) -> str:
    """The option with which a call of srun passes through ours (`script_srun`); empty if there is none."""
    for match in _SRUN.finditer(line):
        with suppress(ValueError):  # an open quote
            words = shlex.split(match[1], comments=True)
            if words and program_at(words) is None:
                return next(filter(_TELLING.match, words), f"srun {words[0]}")
    return ""


def step_output_only(text: str) -> str:
    """In words, why the output of some or all ranks is only in that of the script; empty if nothing shows that."""
    found = unseen_starts(text)
    places = [f"line {number}: {word}" for number, word in found[:3]] + ["..."] * (len(found) > 3)
    return f"step output only, where ranks cannot be seen: {', '.join(places)}" if found else ""


def missing_program(text: str, path: str) -> tuple[int, str] | None:
    """The first Python or starter of it that a script uses and that is not on `path`, with its line.

    None if there is none, or after a line that may change PATH or enter a container.
    """
    for number, line in enumerate(text.split("\n"), 1):
        if line.lstrip().startswith("#"):
            continue
        if _OTHER_PATH.search(line):
            return None
        for match in _PYTHONS.finditer(line):
            if not shutil.which(match[1], path=path):
                return number, match[1]
    return None


def directives(text: str) -> Iterator[Directive]:
    """The options in the `#SBATCH` lines of a script, as sbatch reads them; the lines may share an option's value.

    `#PBS` and `#BSUB` lines have letters of their own, of which only the job's name is needed here.
    """
    words: list[tuple[str, int]] = []
    for number, line in _lines(text):
        try:
            found = shlex.split(_MAGIC.sub("", line, count=1), comments=True)
        except ValueError:  # an open quote, which sbatch reports
            continue
        if line.startswith("#SBATCH"):
            words += [(word, number) for word in found]
        elif len(found) > 1 and found[0] == ("-N" if line.startswith("#PBS") else "-J"):
            words += [("--job-name", number), (found[1], number)]
    words.reverse()
    while words:
        word, number = words.pop()
        name, equals, value = parted_option(word)
        if not name:  # a stray word, or an option that sbatch will refuse
            continue
        if KINDS[name] == "=" and not equals:
            value = value or (words.pop()[0] if words else "")
        elif value and not equals:  # -HQ
            words.append((f"-{value}", number))
            value = ""
        yield Directive(name, value, number)


def parted_option(
    word: str, kinds: Mapping[str, str] = KINDS, letters: Mapping[str, str] = LETTERS
) -> tuple[str, str, str]:
    """The long name of an option, or an empty string; whether it has `=`; and a value that is attached to it."""
    if not word.startswith("--"):
        return letters.get(word[1:2], "") if word.startswith("-") else "", "", word[2:]
    typed, equals, value = word[2:].partition("=")
    matches = [typed] if typed in kinds else [name for name in kinds if typed and name.startswith(typed)]
    return matches[0] if len(matches) == 1 else "", equals, value


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """The lines with options, by number: up to the first command."""
    for number, line in enumerate(text.split("\n"), 1):
        if _MAGIC.match(line):
            yield number, line
        elif line.strip() and not line.lstrip().startswith("#"):
            return

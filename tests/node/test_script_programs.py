"""The programs of ours around a user's batch script: before its interpreter, as srun, and before each task."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from clusterctl.shared.node import script_srun, script_start, script_task

START, SRUN, TASK = (Path(module.__file__ or "") for module in (script_start, script_srun, script_task))
SHOW = '#!/bin/sh\nprintf \'<%s>\' "$0" "$@"; echo; env | sort; exit 3\n'


def program(path: Path, source: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!{sys.executable} -IS\n{source.read_text()}")
    path.chmod(0o700)
    return path


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run directory with the frozen copy of a script."""
    for folder in ("attempts", "bin"):
        (tmp_path / folder).mkdir()
    start = program(tmp_path / "start", START)
    (tmp_path / "script.sh").write_text(f"#!{start} /bin/sh -u\n{SHOW.partition(chr(10))[2]}")
    (tmp_path / "script.sh").chmod(0o700)
    (tmp_path / "run.json").write_text("{}")
    return tmp_path


ENVIRONMENT = {"PATH": "/usr/bin:/bin", "SLURM_JOB_ID": "12", "SLURM_JOB_NODELIST": "n[1-2]", "ODD": "\udce9"}


def start(run: Path, *words: str, **changes: str) -> str:
    done = subprocess.run(
        [run / "script.sh", *words], env=ENVIRONMENT | changes, stdout=subprocess.PIPE, cwd=run, check=False
    )
    assert done.returncode == 3
    return done.stdout.decode(errors="surrogateescape")


def numbers(run: Path) -> list[str]:
    return sorted(path.name for path in (run / "attempts").iterdir())


def test_the_script_sees_nothing_of_its_start_but_a_folder_of_path(run: Path) -> None:
    first, *variables = start(run, "a b", "").splitlines()
    assert first == f"<{run}/script.sh><a b><>"
    shown = dict(line.split("=", 1) for line in variables)
    assert shown["PATH"] == f"{run}/bin:/usr/bin:/bin"
    assert {**shown, "PATH": ENVIRONMENT["PATH"]}.items() >= ENVIRONMENT.items()
    assert not [name for name in shown if name not in {*ENVIRONMENT, "PWD", "_", "OLDPWD", "SHLVL"}]


def test_the_start_is_recorded(run: Path) -> None:
    start(run)
    record = json.loads((run / "attempts/0/host.json").read_text())
    assert (record["attempt"], record["job_id"], record["restart_count"], record["nodes"]) == (0, "12", 0, "n[1-2]")


def test_the_output_is_linked(run: Path) -> None:
    with (run / "out.log").open("wb") as out, (run / "err.log").open("wb") as err:
        subprocess.run([run / "script.sh"], env=ENVIRONMENT, stdout=out, stderr=err, cwd=run, check=False)
    links = {name: (run / "attempts/0" / name).readlink().name for name in ("script.out", "script.err", "host.log")}
    assert links == {"script.out": "out.log", "script.err": "err.log", "host.log": "err.log"}


def test_a_requeue_is_another_attempt_and_a_second_start_is_none(run: Path) -> None:
    start(run)
    start(run)  # by hand, from the script itself
    start(run, SLURM_RESTART_COUNT="1")
    assert numbers(run) == ["0", "1"]


@pytest.mark.parametrize("known", [True, False])
def test_another_job_with_the_same_copy_is_no_attempt(run: Path, known: bool) -> None:
    """As after `sbatch $0`."""
    if known:
        (run / "submission.json").write_text('{"job_id": "12"}')
    else:
        start(run)
    before = numbers(run)
    assert f"PATH={run}/bin" not in start(run, SLURM_JOB_ID="13")
    assert numbers(run) == before


def test_the_job_of_a_resume_is_an_attempt(run: Path) -> None:
    start(run)
    (run / "run.json").write_text('{"resumes": [{"attempts": 1}]}')
    (run / "submission.json").write_text('{"job_id": "13"}')
    start(run, SLURM_JOB_ID="13")
    assert numbers(run) == ["0", "1"]


@pytest.mark.parametrize("damage", ["run.json", "submission.json", "attempts"])
def test_the_script_starts_whatever_fails(run: Path, damage: str) -> None:
    if damage == "attempts":
        (run / "attempts").rmdir()
        (run / "attempts").write_text("")
    else:
        (run / damage).write_text("[1, {")
    assert start(run).startswith(f"<{run}/script.sh>")


def test_a_missing_interpreter_is_reported_like_slurm_does(run: Path) -> None:
    text = (run / "script.sh").read_text().replace("/bin/sh -u", "/no/such/shell")
    (run / "script.sh").write_text(text)
    done = subprocess.run([run / "script.sh"], env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "bad interpreter(/no/such/shell): No such file or directory" in done.stderr


@pytest.mark.parametrize(
    ("words", "place"),
    [
        ("prog", 0),
        ("prog -n 4", 0),
        ("-n 4 prog", 2),
        ("-n4 -N2 prog x", 2),
        ("--ntasks=4 --label prog", 2),
        ("--ntasks 4 prog", 2),
        ("--nta 4 prog", None),  # ambiguous, as for srun
        ("--mpi pmix prog", 2),
        ("-lN2 prog", 1),
        ("-lN 2 prog", 2),
        ("-K1 prog", 1),
        ("-K prog", 1),
        ("--kill-on-bad-exit=1 prog", 1),
        ("--kill-on-bad-exit prog", 1),
        ("--exclusive prog", 1),
        ("-- prog", 1),
        ("-n 2 -- -odd", 3),
        ("-o all.log prog", 2),
        ("-o log-%t prog", None),
        ("--error=%t.err prog", None),
        ("-u prog", None),
        ("--unbuffered prog", None),
        ("--pty bash", None),
        ("--multi-prog conf", None),
        ("--bcast=/tmp/x prog", None),
        ("--container-image=x prog", None),
        ("--container-image x prog", None),
        ("--task-prolog=x prog", None),
        ("-n1 a : -n1 b", None),
        ("--of-tomorrow prog", None),
        ("-n", None),
        ("--help", None),
        ("-V", None),
        ("", None),
        ("-", None),
    ],
)
def test_the_program_is_found_among_the_options_of_srun(words: str, place: int | None) -> None:
    found = script_srun.program_at(words.split())
    assert (found and found[0]) == place


@pytest.mark.parametrize(
    ("typed", "resolved"),
    [
        ("./x", "/step/./x"),  # as srun does it
        ("../no-such", "/step/../no-such"),
        ("/bin/no-such", "/bin/no-such"),
        ("sh", "/bin/sh"),
        ("no-such", "no-such"),
    ],
)
def test_a_program_is_passed_on_as_srun_would_pass_it_on(typed: str, resolved: str) -> None:
    assert script_srun.resolved(typed, "/step", [b"/bin"]) == resolved


def test_the_folder_of_a_step_is_found_among_the_options() -> None:
    assert script_srun.program_at(["-D", "sub", "-n1", "./x"]) == (3, "sub")
    assert script_srun.program_at(["--chdir=sub", "./x"]) == (1, "sub")


@pytest.fixture
def srun(run: Path) -> Path:
    """Our srun, and a real one behind it that shows what it gets."""
    start(run)
    real = run / "real/srun"
    real.parent.mkdir()
    real.write_text(SHOW)
    real.chmod(0o700)
    return program(run / "bin/srun", SRUN)


def call(srun: Path, *words: str, **changes: str) -> list[str]:
    path = f"{srun.parent}:{srun.parents[1]}/real:/usr/bin:/bin"
    done = subprocess.run([srun, *words], env=ENVIRONMENT | {"PATH": path} | changes, capture_output=True, check=False)
    return done.stdout.decode(errors="surrogateescape").splitlines()


def test_srun_gets_our_task_before_the_program_and_no_variable_of_ours(srun: Path) -> None:
    run = srun.parents[1]
    first, *variables = call(srun, "-n2", "prog", "a b", _=str(srun))
    assert first == f"<{run}/real/srun><-n2><{run}/bin/task><{run}/attempts/0><prog><a b>"
    assert f"PATH={run}/real:/usr/bin:/bin" in variables
    assert not [line for line in variables if "/bin/srun" in line or "CLUSTERCTL" in line]


@pytest.mark.parametrize(
    "changes",
    [
        {"SLURM_JOB_ID": "13"},  # a job that the script has submitted inherits its PATH
        {"SLURM_UNBUFFEREDIO": "1"},
        {"SLURM_STDOUTMODE": "%t.out"},
        {"PYXIS_CONTAINER_IMAGE": "x.sqsh"},
    ],
)
def test_srun_leaves_alone_what_it_cannot_see(srun: Path, changes: dict[str, str]) -> None:
    assert call(srun, "prog", **changes)[0] == f"<{srun.parents[1]}/real/srun><prog>"


def test_no_srun_is_not_found(srun: Path) -> None:
    done = subprocess.run([srun, "x"], env={"PATH": str(srun.parent)}, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (127, "srun: command not found\n")


def task(attempt: Path, *words: str, **changes: str) -> subprocess.CompletedProcess[bytes]:
    path = program(attempt / "bin/task", TASK)
    environment = {"PATH": "/usr/bin:/bin", "SLURM_PROCID": "2", "SLURMD_NODENAME": "n1", "ODD": "\udce9"} | changes
    return subprocess.run([path, attempt, *words], env=environment, capture_output=True, check=False, timeout=60)


def events(attempt: Path) -> list[str]:
    lines = (attempt / "events/rank_00002.jsonl").read_text().splitlines()
    return [json.loads(line)["event"] for line in lines]


def test_a_task_is_recorded_and_its_output_copied(tmp_path: Path) -> None:
    done = task(tmp_path, "sh", "-c", "echo out; echo err >&2; exit 7")
    assert (done.returncode, done.stdout, done.stderr) == (7, b"out\n", b"err\n")
    logs = {name: (tmp_path / f"logs/rank_00002.{name}").read_bytes() for name in ("out", "err")}
    assert logs == {"out": b"out\n", "err": b"err\n"}
    assert events(tmp_path) == ["began", "stage", "exit"]


def test_a_task_keeps_its_number_signals_and_environment(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys; print(sorted(os.environb), signal.getsignal(signal.SIGPIPE)); os.kill(os.getpid(), 9)"
    )
    done = task(tmp_path, sys.executable, "-u", "-c", code)
    assert done.returncode == -9
    assert b"b'ODD', b'PATH', b'SLURMD_NODENAME', b'SLURM_PROCID'" in done.stdout


def test_a_task_has_no_child_to_wait_for(tmp_path: Path) -> None:
    code = "import os\ntry: os.wait()\nexcept ChildProcessError: print('none')"
    assert task(tmp_path, sys.executable, "-c", code).stdout == b"none\n"


def test_much_output_arrives_whole(tmp_path: Path) -> None:
    done = task(tmp_path, "sh", "-c", "head -c 5000000 /dev/zero; head -c 3000000 /dev/zero >&2")
    assert (len(done.stdout), len(done.stderr)) == (5_000_000, 3_000_000)
    assert (tmp_path / "logs/rank_00002.out").stat().st_size == 5_000_000


def test_a_full_disk_ends_no_task(tmp_path: Path) -> None:
    (tmp_path / "events").write_text("")  # no folder can be made there
    assert task(tmp_path, "sh", "-c", "echo out; exit 4").returncode == 4


@pytest.mark.parametrize(
    ("name", "code", "words", "message"),
    [
        (
            "./no-such-program",
            2,
            "No such file or directory",
            "cannot start ./no-such-program: No such file or directory",
        ),
        ("no-such-program", 2, "No such file or directory", "cannot start no-such-program: no such program on PATH"),
        ("/etc/passwd", 13, "Permission denied", "cannot start /etc/passwd: Permission denied"),
    ],
)
def test_a_program_that_cannot_start_is_reported_like_slurm_does_and_recorded(
    tmp_path: Path, name: str, code: int, words: str, message: str
) -> None:
    done = task(tmp_path, name)
    assert done.returncode == code
    assert f"error: execve(): {name}: {words}" in done.stderr.decode()
    found = [json.loads(line) for line in (tmp_path / "events/rank_00002.jsonl").read_text().splitlines()]
    (error,) = (event for event in found if event["event"] == "exception")
    assert (error["message"], error["cause"], bool(error["hint"])) == (message, "launch", True)


@pytest.mark.parametrize(
    ("mode", "problem"), [(0o755, "the interpreter that it names is missing"), (0o644, "no such program on PATH")]
)
def test_a_program_on_path_that_cannot_start_is_not_called_absent(tmp_path: Path, mode: int, problem: str) -> None:
    (tmp_path / "tool").write_text("#!/no/such/python\n")
    (tmp_path / "tool").chmod(mode)
    assert task(tmp_path, "tool", PATH=str(tmp_path)).returncode == 2
    assert f"cannot start tool: {problem}" in (tmp_path / "events/rank_00002.jsonl").read_text()


def test_a_program_that_cannot_start_is_no_error_of_ours_on_a_full_disk(tmp_path: Path) -> None:
    (tmp_path / "events").write_text("")
    done = task(tmp_path, "no-such-program")
    assert (done.returncode, done.stderr.count(b"\n")) == (2, 1)

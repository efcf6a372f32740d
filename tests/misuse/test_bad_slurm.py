"""A Slurm that is down or slow, prints nonsense or refuses. Its commands are shell scripts on PATH."""

from __future__ import annotations

import pytest
from support.mistake import CONFIG, SLURM, Desk, check_message, check_plain

from clusterctl.launcher.slurm import client
from clusterctl.launcher.submission import sbatch

JOB = 'workload = "synthetic"\n'
HANG = "exec sleep 60"
RUN = "cora-20260102-030405-00a1"
SEPARATOR = r"\037"


@pytest.fixture(autouse=True)
def short_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sbatch, "TIMEOUT_SECONDS", 0.3)
    monkeypatch.setattr(client.run_command, "__defaults__", (0.3,))


def refusing(line: str) -> str:
    return f"echo '{line}' >&2; exit 1"


def failed(reason: str) -> str:
    return refusing(f"sbatch: error: Batch job submission failed: {reason}")


@pytest.mark.parametrize(
    ("answer", "expected", "hint"),
    [
        (failed("Invalid partition name specified"), "Invalid partition name", "clusterctl nodes"),
        (failed("Invalid account or account/partition combination specified"), "Invalid account", "sacctmgr"),
        (failed("Invalid qos specification"), "Invalid qos", "`qos`"),
        (failed("Requested time limit is invalid (missing or exceeds some limit)"), "time limit", "resources.time"),
        (failed("Requested node configuration is not available"), "node configuration", "fewer nodes"),
        (failed("Node count specification invalid"), "Node count", "fewer nodes"),
        (failed("More processors requested than permitted"), "More processors", "fewer"),
        (failed("Memory specification can not be satisfied"), "Memory", "resources.memory"),
        (failed("Job violates accounting/QOS policy (job submit limit, user'\"'\"'s size)"), "QOS policy", "sacctmgr"),
        (failed("Invalid generic resource (gres) specification"), "gres", "gpu_request"),
        (failed("Unspecified error"), "Unspecified error", "--dry-run"),
        (
            refusing("sbatch: error: Unable to contact slurm controller (connect failure)"),
            "Unable to contact",
            "scontrol",
        ),
        (refusing("sbatch: unrecognized option '\"'\"'--frobnicate'\"'\"'"), "unrecognized option", "remove it"),
        (refusing("sbatch: fatal: Could not establish a configuration source"), "configuration source", "slurm_conf"),
        ("exit 1", "exit code 1", "--dry-run"),
        ("exit 127", "exit code 127", "--dry-run"),
        (r"printf 'sbatch: error: \033[2J\033]0;x\007no\n' >&2; exit 1", "sbatch refused the job: no", "--dry-run"),
        ("exec /nowhere/sbatch", "sbatch refused the job", "--dry-run"),
    ],
)
def test_a_refusal_leaves_no_run(desk: Desk, answer: str, expected: str, hint: str) -> None:
    desk.use_slurm(sbatch=answer)
    code, out, err = desk.type("submit synthetic")
    assert (code, out) == (SLURM, "")
    check_message(err, expected, hint)
    assert desk.run_directories() == []
    assert desk.asked("sbatch") == 1


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (HANG, "no answer from sbatch"),
        ("kill -9 $$", "sbatch was killed"),
        ("kill -TERM $$", "sbatch was killed"),
        (refusing("sbatch: error: Batch job submission failed: Socket timed out on send/recv operation"), "timed out"),
        ("exit 0", "sbatch printed no job ID"),
        ("echo Welcome to the cluster", "sbatch printed no job ID"),
        ("echo Submitted batch job", "sbatch printed no job ID"),
        ("head -c 100000 /dev/urandom", "sbatch"),
        (r"printf '\377\376\n' >&2; exit 1", "sbatch"),
    ],
)
def test_the_run_is_kept_if_sbatch_may_have_queued_a_job(desk: Desk, answer: str, expected: str) -> None:
    desk.use_slurm(sbatch=answer)
    code, out, err = desk.type("submit synthetic")
    (run,) = desk.run_directories()
    assert (code, out) == (SLURM, "")
    check_message(err, expected, f"`clusterctl status {run.name}` finds it")


@pytest.mark.parametrize(
    ("answer", "expected", "hint"),
    [
        (HANG, "squeue did not answer within", "scontrol ping"),
        (refusing("slurm_load_jobs error: Unable to contact slurm controller (connect failure)"), "contact", "ping"),
        (refusing("squeue: error: Invalid user: 12345"), "Invalid user", "squeue --me"),
        ("exit 1", "squeue: exit code 1", "squeue --me"),
        ("kill -9 $$", "squeue: exit code -9", "squeue --me"),
        (r"printf '\033[2Jno\n' >&2; exit 1", "squeue: no", "squeue --me"),
    ],
)
@pytest.mark.parametrize("command", ["release @last", "cancel @last", "status"])
def test_a_squeue_that_does_not_answer(desk: Desk, command: str, answer: str, expected: str, hint: str) -> None:
    desk.use_slurm(sbatch="echo Submitted batch job 7", squeue=answer)
    assert desk.type("submit synthetic")[0] == 0
    code, _, err = desk.type(command)
    assert code == (SLURM if command.startswith("release") else 0)  # the others work without squeue
    message = err.replace("warning:", "error:").replace("cancelled ", "  ")
    assert expected in message
    assert hint in message.partition("hint: ")[2]
    check_plain(err)


@pytest.mark.parametrize(
    "answer",
    [
        "echo nonsense",
        "head -c 100000 /dev/urandom",
        "yes | head -n 10000",
        rf"printf '7{SEPARATOR}\n'",
        rf"printf '7{SEPARATOR}PENDING{SEPARATOR}\033[2J\033]0;x\007{SEPARATOR * 11}\n'",
        rf"printf '7{SEPARATOR}FLYING{SEPARATOR * 12}\n'",
        rf"printf '7{SEPARATOR}RUNNING{SEPARATOR}None{SEPARATOR * 2}x{SEPARATOR}-1{SEPARATOR}1e9{SEPARATOR * 7}\n'",
        rf"printf '99999999999999999999{SEPARATOR}RUNNING{SEPARATOR * 12}\n'",
    ],
)
def test_nonsense_from_squeue_breaks_no_command(desk: Desk, answer: str) -> None:
    desk.use_slurm(sbatch="echo Submitted batch job 7", squeue=answer)
    assert desk.type("submit synthetic")[0] == 0
    for command in ("status", "status -o json", "status @last", "logs @last"):
        code, out, err = desk.type(command)
        assert code == 0, err
        check_plain(out + err)


@pytest.mark.parametrize(
    ("answer", "code", "expected", "hint"),
    [
        (
            refusing("scancel: error: Kill job error on job id 7: Access/permission denied"),
            SLURM,
            "permission denied",
            "squeue --me",
        ),
        (
            refusing("scancel: error: Unable to contact slurm controller (connect failure)"),
            SLURM,
            "Unable to contact",
            "scontrol ping",
        ),
        ("exit 1", 0, "cancelled", ""),
        (HANG, SLURM, "scancel did not answer", "scontrol ping"),
        ("kill -9 $$", SLURM, "scancel", "squeue --me"),
    ],
)
def test_a_job_that_cannot_be_cancelled(desk: Desk, answer: str, code: int, expected: str, hint: str) -> None:
    queue = rf"printf '7{SEPARATOR}RUNNING{SEPARATOR * 12}\n'"
    desk.use_slurm(sbatch="echo Submitted batch job 7", squeue=queue, scancel=answer)
    assert desk.type("submit synthetic")[0] == 0
    got, out, err = desk.type("cancel @last")
    assert (got, out) == (code, ""), err
    if code:
        check_message(err, expected, hint)
    assert expected in err


def test_a_job_that_cannot_be_released(desk: Desk) -> None:
    queue = rf"printf '7{SEPARATOR}PENDING{SEPARATOR * 12}\n'"
    answer = "echo 'Access/permission denied for job 7' >&2; exit 1"
    desk.use_slurm(sbatch="echo Submitted batch job 7", squeue=queue, scontrol=answer)
    assert desk.type("submit synthetic --hold")[0] == 0
    code, _, err = desk.type("release @last")
    assert code == SLURM
    check_message(err, "scontrol: Access/permission denied for job 7", "squeue --me")


@pytest.mark.parametrize(
    ("answer", "expected", "hint"),
    [(HANG, "did not answer", "scontrol ping"), (failed("Invalid partition"), "partition", "clusterctl nodes")],
)
def test_a_slurm_dry_run_without_an_answer(desk: Desk, answer: str, expected: str, hint: str) -> None:
    desk.use_slurm(sbatch=answer)
    code, _, err = desk.type("submit synthetic --dry-run=slurm")
    assert code == SLURM
    check_message(err, expected, hint)
    assert desk.run_directories() == []


def test_wait_times_out_if_squeue_never_answers(desk: Desk) -> None:
    desk.use_slurm(sbatch="echo Submitted batch job 7", squeue=HANG)
    code, _, err = desk.type("submit synthetic --wait --timeout 0.2")
    assert code == 124
    check_message(err, "is still queued after 0.2 s", "clusterctl status")


def test_bad_mount_flags_in_the_cluster_file_cause_no_traceback(desk: Desk) -> None:
    desk.use_slurm('container = {image = "python", mounts = ["/a:/b:c:d"]}', sbatch="echo Submitted batch job 7")
    code, _, err = desk.type("submit synthetic")
    assert code == CONFIG
    check_message(err, "more than SRC:DST:FLAGS", "paths must not contain ':'")
    assert desk.asked("sbatch") == 0

"""Servers that refuse, unreachable machines, hostile answers, and secrets that must not leak."""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
import time
from pathlib import Path

import pytest
from support.far import made, processes, staged

from clusterctl.shared.record.layout import RunDir

MASKED = "s3cr3t-t0ken-of-this-test"


@pytest.mark.parametrize(
    "server",
    [
        {"PubkeyAuthentication": "no", "PasswordAuthentication": "yes", "KbdInteractiveAuthentication": "no"},
        pytest.param(
            {"PubkeyAuthentication": "no", "PasswordAuthentication": "no", "KbdInteractiveAuthentication": "yes",
             "UsePAM": "yes"},
            marks=pytest.mark.long,
        ),
    ],
    ids=["password", "keyboard-interactive"],
)  # fmt: skip
def test_a_server_that_asks_for_a_password_is_an_error_without_a_terminal(
    far_shared: Path, tmp_path: Path, server: dict[str, str]
) -> None:
    with made(far_shared, server=server) as far, staged(far, tmp_path) as stage:
        began = time.monotonic()
        process = stage.begin("status", "--cluster", "far")  # in its own session, without a terminal
        _, errors = process.communicate(timeout=60)
        assert time.monotonic() - began < 30
        assert process.returncode == 4
        assert errors.startswith("error: far asks for a password or a code, but there is no terminal: ")
        assert "hint: connect once in a terminal" in errors


def test_a_changed_host_key_and_an_unreachable_host_are_errors(far_shared: Path, tmp_path: Path) -> None:
    with made(far_shared) as far, staged(far, tmp_path) as stage:
        known = (far.etc / "known").read_text().split()
        other = (far.etc / "user.pub").read_text().split()[1]
        (far.etc / "known").write_text(f"{known[0]} {known[1]} {other}\n")
        errors = stage.do("status", code=4)
        assert "error: far: ssh does not trust this host:\n" in errors
        assert "REMOTE HOST IDENTIFICATION HAS CHANGED" in errors
        assert "hint: in a terminal: ssh far" in errors
        far.stop()
        errors = stage.do("status", code=4)
        assert errors.startswith("error: cannot connect to far: ")
        assert "Connection refused" in errors


@pytest.mark.parametrize("host", ["-oProxyCommand=touch x", "", "two words", "a\nb", "$(touch x)", "a;b"])
def test_an_unsafe_host_name_is_refused(tmp_path: Path, host: str) -> None:
    (tmp_path / "bad.toml").write_text(f"host = {json.dumps(host)}\n")
    done = subprocess.run(
        [*clusterctl_argv(), "status", "--cluster", "./bad.toml"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 3
    assert "host" in done.stderr
    assert not (tmp_path / "x").exists()


def clusterctl_argv() -> list[str]:
    from support.scenario import CLUSTERCTL

    return [CLUSTERCTL]


IMPOSTOR = r"""
import base64, json, struct, sys
if sys.argv[3:]:
    request = json.loads(base64.b64decode(sys.argv[3]))
else:
    size = struct.unpack(">cI", sys.stdin.buffer.read(5))[1]
    request = json.loads(sys.stdin.buffer.read(size))
out = sys.stdout.buffer
def frame(letter, payload): out.write(struct.pack(">cI", letter, len(payload)) + payload); out.flush()
def answer():
    reply = b""
    while True:
        _, size = struct.unpack(">cI", sys.stdin.buffer.read(5))
        if not size: return reply
        reply += sys.stdin.buffer.read(size)
out.write(request["mark"].encode())
mode = sys.argv[1]
if mode == "noise": out.write(b"<html>\x1b[2Jno frames</html>" * 10); out.flush()
if mode == "crash": sys.exit("Traceback\n\x1b]0;owned\x07\x1b[2J it failed")
if mode == "huge": out.write(b"O\xff\xff\xff\xff"); out.flush()
if mode == "asks":
    questions = [{"upload": sys.argv[2]}, {"project": "/etc"}, {"variable": "HOME"}, {"upload": "/etc/passwd"}, {}]
    got = []
    for question in questions:
        frame(b"Q", json.dumps(question).encode())
        got.append(answer().decode())
    frame(b"O", json.dumps(got).encode()); frame(b"X", b"0")
if mode == "wrong": frame(b"Q", b"[1"); frame(b"X", b"0")
if mode == "code": frame(b"X", b"not a number")
sys.stdin.buffer.read()
"""


@pytest.mark.long
def test_an_impostor_learns_nothing_and_its_escape_sequences_are_removed(far_shared: Path, tmp_path: Path) -> None:
    with made(far_shared) as far, staged(far, tmp_path) as stage:
        stage.do("nodes")
        shared = Path(far.variables["XDG_DATA_HOME"])
        far.variables["XDG_DATA_HOME"] = str(far.home / "data")
        shutil.copytree(shared / "clusterctl" / "remote", far.installed)
        far.restart()
        key = far.home / "id_of_this_machine"
        key.write_text("PRIVATE KEY")
        (start,) = far.installed.glob("*/start")
        (far.home / "impostor.py").write_text(IMPOSTOR)
        for mode in ("noise", "huge", "wrong", "code", "crash", "asks"):
            start.write_text(f"exec python3 '{far.home}/impostor.py' {mode} '{key}' \"$@\"\n")
            done = stage.call("status", "--cluster", "far", timeout=60)
            if mode == "asks":
                assert json.loads(done.stdout) == [""] * 5
            else:
                assert done.returncode == 4, (mode, done.stderr)
                assert done.stderr.startswith("error: "), (mode, done.stderr)
                assert "Traceback" not in done.stderr
            assert "\x1b" not in done.stderr + done.stdout
            assert "\x07" not in done.stderr


@pytest.mark.long
def test_a_secret_is_required_again_and_appears_in_no_command_line_or_file(far_shared: Path, tmp_path: Path) -> None:
    seen: set[bytes] = set()
    ended = threading.Event()

    def look() -> None:
        while not ended.is_set():
            for line in processes().values():
                seen.update(word for word in line if MASKED.encode() in word)

    with made(far_shared) as far, staged(far, tmp_path) as stage:
        program = "import os; print(len(os.environ['X_TOKEN']), flush=True)"
        text = f'workload = "command"\nargv = ["python", "-c", {json.dumps(program)}]\n[resources]\nnodes = 1\n'
        job = stage.write_job("secret", text)
        watcher = threading.Thread(target=look)
        watcher.start()
        try:
            runs = [stage.do("submit", job, "--set", f"env.X_TOKEN={MASKED}", "--wait").strip()]
            errors = stage.do("rerun", runs[0], code=3)
            assert "error: the run needs secrets, which are not stored: X_TOKEN\n" in errors
            assert "hint: set it in your environment: export X_TOKEN\n" in errors
            stage.environment["X_TOKEN"] = MASKED
            runs.append(stage.do("rerun", runs[0], "--wait").strip())
        finally:
            ended.set()
            watcher.join()
        for run in runs:
            assert stage.log(RunDir(stage.runs / run), 0).splitlines()[-1] == str(len(MASKED))
        assert seen <= {f"env.X_TOKEN={MASKED}".encode()}, "what was typed here"
        for folder in (stage.runs, far.shared, far.folder):
            for path in folder.rglob("*"):
                if path.is_file() and not path.is_symlink() and "emulator" not in path.parts:
                    assert MASKED.encode() not in path.read_bytes(), path


def test_a_command_needs_at_most_three_round_trips(far_shared: Path, tmp_path: Path) -> None:
    with made(far_shared, through_relay=True) as far, staged(far, tmp_path) as stage:
        stage.do("status")
        (far.link / "delay").write_text("0.1")
        time.sleep(0.2)
        before = int((far.link / "turns").read_text())
        began = time.monotonic()
        stage.do("status")
        assert int((far.link / "turns").read_text()) - before <= 3, "the session, the answer, and its end"
        assert time.monotonic() - began < 30


@pytest.mark.long
def test_forbidden_port_forwarding_and_exhausted_sessions_are_errors(far_shared: Path, tmp_path: Path) -> None:
    with (
        made(far_shared, server={"AllowTcpForwarding": "no", "MaxSessions": "1"}) as far,
        staged(far, tmp_path) as stage,
    ):
        stage.do("nodes")
        assert stage.do("dashboard", code=4) == (
            "error: far does not allow port forwarding (AllowTcpForwarding no)\nhint: run it there: ssh far\n"
        )
        watching = stage.begin("status", "--watch", "-o", "jsonl", "--cluster", "far")
        time.sleep(2)
        began = time.monotonic()
        errors = stage.do("status", code=4)
        assert errors == (
            "error: too many sessions on far (MaxSessions of its sshd)\nhint: end another running command\n"
        )
        assert time.monotonic() - began < 20
        watching.kill()

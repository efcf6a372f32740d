"""A hostile login node gets nothing from this machine, and causes nothing on it: every message, in every command."""

from __future__ import annotations

import base64
import io
import json
import os
import re
import sys
import tarfile
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

import click
import pytest

import clusterctl
from clusterctl.launcher import cli
from clusterctl.launcher.api import completions
from clusterctl.launcher.api.remote.cluster import remote_cluster
from clusterctl.launcher.api.remote.request import Answer
from clusterctl.launcher.api.several_clusters import look_at
from clusterctl.launcher.observe.status import statuses_of
from clusterctl.launcher.remote import connection, ssh
from clusterctl.launcher.remote.frames import Frame, FrameKind, Reader
from clusterctl.launcher.remote.values import encoded
from clusterctl.shared.errors import ClusterctlError, HostError
from clusterctl.shared.record.layout import RunDir

_REQUEST = re.compile(r'start" ([A-Za-z0-9+/=]+)')
SECRET = "s3cr3t-0f-th1s-m4ch1ne"
RUN = "cora-20260102-030405-00a1"
EXIT_CODES = {0, 1, 2, 3, 4, 5, 75, 124, 130}
COMMANDS = {
    "alloc": ["alloc", "cora"],
    "attach": ["attach", RUN, "--", "true"],
    "cancel": ["cancel", RUN],
    "clean": ["clean", "--older-than", "1d"],
    "dashboard": ["dashboard"],
    "data generate": ["data", "generate", "taobao", "--root", "/x"],
    "data prepare": ["data", "prepare", "reddit", "--root", "/x"],
    "diff": ["diff", RUN, RUN],
    "doctor": ["doctor"],
    "export": ["export", RUN],
    "fetch": ["fetch", RUN],
    "image import": ["image", "import", "image.sqsh"],
    "image inspect": ["image", "inspect", "x"],
    "image list": ["image", "list"],
    "image prune": ["image", "prune"],
    "image verify": ["image", "verify"],
    "logs": ["logs", RUN, "-f"],
    "monitor": ["monitor", RUN],
    "nodes": ["nodes", "--for", "cora"],
    "notify": ["notify", RUN],
    "release": ["release", RUN],
    "report": ["report", RUN],
    "rerun": ["rerun", RUN],
    "resume": ["resume", RUN],
    "status": ["status"],
    "submit": ["submit", "cora", "--wait"],
    "track": ["track", RUN],
    "tunnel": ["tunnel", RUN, "8888:0"],
    "usage": ["usage"],
    "why": ["why", RUN],
}  # fmt: skip
VARIABLES = ("GITHUB_TOKEN", "AWS_SECRET_ACCESS_KEY", "HOME", "", "X_TOKEN", ["GITHUB_TOKEN"], None, {"a": 1}, 10**30)
FILES = ("/etc/passwd", "secret.txt", "../secret.txt", ["secret.txt"], None, 0)
PROJECTS = ("/etc", "/", None, ["."], {})
NUMBERS = ([0], [-1], [10**9], [1e400], ["0"], [None], [[0]], "0", {}, None, [0] * 1000)
DEEP = b"[" * 200_000


_IN_COMMAND_LINE = re.compile(r'start" ([A-Za-z0-9+/=]+)')


class HostileNode:
    """Takes the place of ssh. `play` is what it does once a command has sent its request."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.play: Callable[[HostileNode], None] = lambda _: None
        self.lines: list[str] = []  # ssh's command lines, which every user of both machines can read
        self.requests: list[dict[str, Any]] = []
        self.received = b""  # everything after the requests
        self.ports: list[int] = []
        self._thread: threading.Thread | None = None
        monkeypatch.setattr(ssh, "session", self._session)
        monkeypatch.setattr(ssh, "connect", lambda *_, **__: True)
        for name in ("bring_port", "leave_port"):
            monkeypatch.setattr(
                f"clusterctl.launcher.api.remote.request.{name}", lambda _, __, there: self.ports.append(there)
            )
        made = SimpleNamespace(name="package", path=Path(__file__))
        monkeypatch.setattr(connection, "package", lambda: made)

    def send(self, data: bytes) -> None:
        with suppress(OSError):
            self._output.write(data)
            self._output.flush()

    def frame(self, kind: FrameKind, payload: bytes = b"") -> None:
        self.send(Frame(kind, payload).packed())

    def ask(self, question: object) -> bytes:
        """The answer to a question; empty as well if the connection was closed."""
        self.frame(FrameKind.QUESTION, question if isinstance(question, bytes) else json.dumps(question).encode())
        answer = b""
        while frame := self._next():
            if frame.kind is FrameKind.DATA:
                if not frame.payload:
                    return answer
                answer += frame.payload
        return answer

    def settle(self) -> None:
        """Wait until it has noticed the end of the last session."""
        if self._thread:
            self._thread.join(20)
            assert not self._thread.is_alive()

    def end(self, code: int = 0) -> None:
        self.frame(FrameKind.EXIT, str(code).encode())

    def _next(self) -> Frame | None:
        while not self._frames:
            data = os.read(self._input.fileno(), 2**16)
            if not data:
                return None
            found = [*self._reader.fed(data)]
            if not self.requests or self._waits:
                self._waits = False
                self.requests.append(json.loads(found.pop(0).payload))
            self.received += b"".join(frame.payload for frame in found)
            self._frames += found
        return self._frames.pop(0)

    def _session(self, host: str, command: str) -> _Process:
        self.settle()
        self.lines.append(command)
        process = _Process()
        self._input, self._output = process.there
        self._reader, self._frames, self._waits = Reader(), list[Frame](), False
        self._thread = threading.Thread(target=self._serve, args=(command,), daemon=True)
        self._thread.start()
        return process

    def _serve(self, command: str) -> None:
        with suppress(OSError), self._input, self._output:
            if not command.startswith("exec sh -c 'exec sh "):
                return  # it installs clusterctl
            if found := _IN_COMMAND_LINE.search(command):
                self.requests.append(json.loads(base64.b64decode(found[1])))
            else:
                self._waits = True
                while self._waits:
                    data = os.read(self._input.fileno(), 2**20)
                    if not data:
                        return
                    for frame in self._reader.fed(data):
                        if self._waits:
                            self._waits = False
                            self.requests.append(json.loads(frame.payload))
                        else:
                            self.received += frame.payload
                            self._frames.append(frame)
            with suppress(OSError):
                self.play(self)

    @property
    def mark(self) -> bytes:
        return str(self.requests[-1]["mark"]).encode()


class _Process:
    """ssh, as far as a session uses it."""

    def __init__(self) -> None:
        ends = [os.pipe() for _ in range(3)]
        self.stdin: IO[bytes] = os.fdopen(ends[0][1], "wb", 0)
        self.stdout: IO[bytes] = os.fdopen(ends[1][0], "rb", 0)
        self.stderr: IO[bytes] = os.fdopen(ends[2][0], "rb", 0)
        os.close(ends[2][1])
        self.there = os.fdopen(ends[0][0], "rb", 0), os.fdopen(ends[1][1], "wb", 0)
        self.returncode = 0

    def wait(self, timeout: float | None = None) -> int:
        return 0

    def kill(self) -> None:
        """Its streams are closed next, which ends the other side."""

    def communicate(self, data: bytes) -> tuple[bytes, bytes]:
        for stream in (self.stdin, self.stdout, self.stderr):
            stream.close()
        return b"", b""


def archive(members: Iterable[tuple[str, bytes, dict[str, Any]]]) -> bytes:
    """A .tar.gz of files: name, content, and attributes of its TarInfo."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz", format=tarfile.PAX_FORMAT) as file:
        for name, content, others in members:
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(content), 0o644
            for key, value in others.items():
                setattr(info, key, value)
            file.addfile(info, io.BytesIO(content))
    return made.getvalue()


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HostileNode]:
    """The cluster `far` on a hostile login node; this machine has secrets in its environment, stdin and files."""
    for kind in ("CONFIG", "STATE", "DATA", "CACHE"):
        monkeypatch.setenv(f"XDG_{kind}_HOME", str(tmp_path / kind))
    folder = tmp_path / "CONFIG" / "clusterctl" / "cluster"
    folder.mkdir(parents=True)
    (folder / "far.toml").write_text('host = "far.example"\nsecrets = ["*"]\n[env]\nLANG = "C"\n')
    (tmp_path / "secret.txt").write_text(SECRET)
    project = tmp_path / "project"
    project.mkdir()
    for name in ("secret.txt", "image.sqsh"):
        (project / name).write_text("" if "image" in name else SECRET)
    (project / "link").symlink_to(tmp_path / "secret.txt")
    monkeypatch.chdir(project)
    monkeypatch.setenv("CLUSTERCTL_CLUSTER", "far")
    for name in ("GITHUB_TOKEN", "AWS_SECRET_ACCESS_KEY", "X_TOKEN", "LD_PRELOADED"):
        monkeypatch.setenv(name, SECRET)
    before = os.dup(0)
    yield HostileNode(monkeypatch)
    os.dup2(before, 0)
    os.close(before)


def call(words: list[str], monkeypatch: pytest.MonkeyPatch) -> int:
    """Run a command with a line on stdin; returns its exit code."""
    ours, theirs = os.pipe()
    os.write(theirs, f"{SECRET}\n".encode())
    os.close(theirs)
    os.dup2(ours, 0)
    os.close(ours)
    with os.fdopen(os.dup(0)) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        return cli.run(words)


def asks_everything(node: HostileNode) -> None:
    node.send(node.mark)
    for variable in VARIABLES:
        node.ask({"variable": variable})
    for file in FILES:
        node.ask({"upload": file})
    for project in (*PROJECTS, str(Path.cwd())):
        node.ask({"project": project})
        for numbers in NUMBERS[:1]:
            node.ask({"project": project, "files": numbers})
    for other in ({"line": True}, {"line": 1, "variable": "X_TOKEN"}, {}, {"password": True}, {"line": {"a": 1}}):
        node.ask(other)
    node.end(3)


def printing(kind: FrameKind, payload: bytes, code: int = 0) -> Any:
    def play(node: HostileNode) -> None:
        node.send(node.mark)
        node.frame(kind, payload)
        node.end(code)

    return play


def sending(data: bytes) -> Any:
    def play(node: HostileNode) -> None:
        node.send(node.mark + data)

    return play


def frames_of_this_machine(node: HostileNode) -> None:
    node.send(node.mark)
    for kind in (FrameKind.REQUEST, FrameKind.INPUT, FrameKind.DATA, FrameKind.SIGNAL, FrameKind.SIZE):
        node.frame(kind, b"2")
    node.end()


def questions_without_end(node: HostileNode) -> None:
    node.send(node.mark)
    for _ in range(10_000):
        node.frame(FrameKind.QUESTION, b"{}")
    node.end()


def noise_without_end(node: HostileNode) -> None:
    with suppress(OSError):
        for _ in range(2000):
            node._output.write(b"Welcome! " * 1000)


FOREIGN = {"of": "clusterctl.launcher.remote.install:x", "fields": {"dict": []}}
PLAYS: dict[str, Any] = {
    "asks everything": asks_everything,
    "nothing": lambda _: None,
    "noise": lambda node: node.send(b"<html>\x1b[2J" * 1000),
    "endless noise": noise_without_end,
    "no frames": sending(b"<html>" * 10),
    "a huge frame": sending(b"O\xff\xff\xff\xffx"),
    "half a frame": sending(b"Q\0\0\0\xffx"),
    "unknown frames": sending(b"".join(bytes([letter]) + b"\0\0\0\0" for letter in range(256) if letter != 0x58)),
    "frames of this machine": frames_of_this_machine,
    "endless questions": questions_without_end,
    "broken question": printing(FrameKind.QUESTION, b"[1"),
    "no question": printing(FrameKind.QUESTION, b"[1]"),
    "deep question": printing(FrameKind.QUESTION, DEEP),
    "long number": printing(FrameKind.QUESTION, b"1" * 100_000),
    "no exit code": sending(b"X\0\0\0\x03abc"),
    "a huge exit code": sending(b"X\0\0\x00\x14" + b"9" * 20),
    "deep answer": printing(FrameKind.OUTPUT, b'{"returned":' + DEEP),
    "foreign answer": printing(FrameKind.OUTPUT, json.dumps({"returned": FOREIGN}).encode()),
    "ids that are none": printing(FrameKind.OUTPUT, b'{"id": 1}\n{"x": 2}\n{\n[]\n\xff\xfe\n'),
    "deep ids": printing(FrameKind.OUTPUT, b'{"id":' + DEEP + b"\n"),
    "an address": printing(FrameKind.QUESTION, b'{"dashboard": {"port": 80, "token": "a"}}'),
    "another address": printing(FrameKind.QUESTION, b'{"dashboard": {"port": 80, "token": "a@evil.example/"}}'),
    "a false address": printing(FrameKind.QUESTION, b'{"dashboard": {"port": 99999, "token": "a"}}'),
    "no address": printing(FrameKind.QUESTION, b'{"dashboard": [80]}'),
    "an error": printing(FrameKind.ERRORS, b"error: \xff\nhint: x\n", code=5),
}  # fmt: skip


def check(
    node: HostileNode, name: str, play: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    node.play = PLAYS[play]
    modules = {name for name in sys.modules if name == "clusterctl.launcher.remote.install"}
    before = {path: path.read_bytes() for path in Path.cwd().parent.rglob("*") if path.is_file()}
    code = call(COMMANDS[name], monkeypatch)
    node.settle()
    assert code in EXIT_CODES, code
    _, errors = capfd.readouterr()
    assert "Traceback" not in errors
    if code == 4:
        assert "error: " in errors
        assert "hint: " in errors
    typed = [node.received] if name != "attach" else []  # it sends what is typed
    sent = [*typed, *(json.dumps(request).encode() for request in node.requests), *map(os.fsencode, node.lines)]
    assert not any(SECRET.encode() in one for one in sent)
    assert modules == {name for name in sys.modules if name == "clusterctl.launcher.remote.install"}
    assert all(path.read_bytes() == content for path, content in before.items() if "CACHE" not in path.parts)
    new = [path for path in Path.cwd().iterdir() if path not in before and path.name != "link"]
    assert {path.name for path in new} <= {f"{RUN}.html", f"{RUN}.tar.gz"}, "only the file that was asked for"


@pytest.mark.parametrize("name", COMMANDS)
def test_nothing_leaves_this_machine_for_a_question(
    node: HostileNode, name: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    check(node, name, "asks everything", monkeypatch, capfd)


@pytest.mark.parametrize(
    "name",
    [
        name if name in ("status", "submit", "dashboard") else pytest.param(name, marks=pytest.mark.long)
        for name in COMMANDS
    ],
)
def test_no_message_causes_anything_but_an_error(
    node: HostileNode, name: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for play in PLAYS:
        node.received, node.requests, node.lines = b"", [], []
        check(node, name, play, monkeypatch, capfd)
        for path in Path.cwd().glob("cora-*"):
            path.unlink()


def test_every_command_of_a_cluster_is_tried() -> None:
    found = set()

    def visit(command: click.Command, name: str) -> None:
        if isinstance(command, click.Group):
            for inner in command.list_commands(click.Context(command)):
                got = command.get_command(click.Context(command), inner)
                assert got
                visit(got, f"{name} {inner}".strip())
        elif (own := getattr(command.callback, "wrapped", None)) and "here" not in getattr(own, "remotely", {}):
            found.add(name)

    visit(cli.clusterctl, "")
    assert found | {"fetch"} == set(COMMANDS)


def test_resume_gets_the_variables_of_jobs_that_were_submitted_from_here(
    node: HostileNode, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    got: list[bytes] = []

    def ask(node: HostileNode) -> None:
        node.send(node.mark)
        got[:] = [node.ask({"variable": name}) for name in ("X_TOKEN", "GITHUB_TOKEN", "HOME", "LANG")]
        node.end()

    node.play = ask
    monkeypatch.setenv("LANG", "C.UTF-8")
    assert call(["resume", RUN], monkeypatch) == 0
    assert got == [b"", b"", b"", b"C.UTF-8"], "`env` of the cluster file names LANG"
    _, errors = capfd.readouterr()
    assert "warning: far.example requested your variable X_TOKEN, which was not sent\nhint: " in errors
    Path("mine.toml").write_text('workload = "command"\nargv = ["true"]\n[env]\nX_TOKEN = "another-value"\n')
    for words in (["submit", "mine.toml"], ["status"]):
        assert call(words, monkeypatch) == 0
        assert not any(got[:3]), words
    for words in (["resume", RUN], ["rerun", RUN]):
        assert call(words, monkeypatch) == 0
        assert got == [SECRET.encode(), b"", b"", b"C.UTF-8"]
    assert SECRET not in "".join(node.lines)


@pytest.mark.parametrize(("typed", "sent"), [(SECRET, b"?\n"), ("Yes", b"y\n"), ("", b"n\n"), ("n", b"n\n")])
def test_a_confirmation_is_a_yes_or_a_no(
    node: HostileNode, typed: str, sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    got: list[bytes] = []

    def ask(node: HostileNode) -> None:
        node.send(node.mark)
        got[:] = [node.ask({"line": True})]
        node.end()

    node.play = ask
    for words, expected in ((["clean"], sent), (["clean", "--yes"], b""), (["status"], b""), (["submit", "cora"], b"")):
        monkeypatch.setattr(sys, "stdin", io.StringIO(f"{typed}\n"))
        assert cli.run(words) == 0
        assert got == [expected], words


@pytest.mark.parametrize(("words", "requests"), [(["submit", "cora"], 1), (["submit", "cora", "--wait"], 2)])
def test_only_a_command_that_should_wait_waits(
    node: HostileNode, words: list[str], requests: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(node: HostileNode) -> None:
        node.send(node.mark)
        if len(node.requests) == 1:
            node.ask({"wait": {"ids": ["x; rm -rf ~", 5], "more": DEEP.decode()[:100]}})
        node.end()

    node.play = ask
    assert call(words, monkeypatch) == 0
    assert len(node.requests) == requests


def test_only_files_of_the_project_are_sent_and_no_target_of_a_link(
    node: HostileNode, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    Path("secret.txt").unlink()
    Path("train.py").write_text("print(1)\n")
    got: list[bytes] = []

    def ask(node: HostileNode) -> None:
        node.send(node.mark)
        names = [row[0] for row in json.loads(zlib.decompress(node.ask({"project": str(Path.cwd())})))]
        numbers = {"link": [names.index("link")], "train": [names.index("train.py")]} | dict(enumerate(NUMBERS[1:]))
        got[:] = [node.ask({"project": str(Path.cwd()), "files": numbers[wanted]})]
        node.end()

    node.play = ask
    for wanted in ("train", "link", *range(len(NUMBERS) - 1)):
        code = call(["submit", "--", "python", "train.py"], monkeypatch)
        _, errors = capfd.readouterr()
        assert "Traceback" not in errors
        if wanted == "train":
            assert code == 0
            assert zlib.decompress(got[0])[8:] == b"print(1)\n"
    assert SECRET.encode() not in node.received


def test_the_python_api_raises_only_its_own_errors(node: HostileNode) -> None:
    run = clusterctl.launcher.api.run.Run(Path("/runs", RUN), place=remote_cluster("far"))
    calls = (
        run.status, run.why, run.metrics, run.logs, run.cancel, run.resume, run.rerun, lambda: run.batches,
        lambda: clusterctl.find(RUN, cluster="far"), lambda: clusterctl.runs(cluster="far"),
        lambda: look_at(["far"], state="failed"),
    )  # fmt: skip
    answers = [
        b"", b"[]", b"{}", b"5", b'{"returned": 1, "raised": 1}', b'{"returned": {"list": [1]}}', b"\xff",
        b'{"raised": {"error": "clusterctl.shared.errors:UsageError", "text": "a", "fields": {"dict": []}}}',
        b'{"raised": {"error": "builtins:SystemExit", "text": "a", "fields": {"dict": []}}}',
        b'{"returned": {"of": "clusterctl.launcher.api.run:Run", "fields": {"dict": [["path", 1]]}}}',
        json.dumps({"returned": FOREIGN}).encode(), b'{"returned":' + DEEP,
    ]  # fmt: skip
    for answer in answers:
        node.play = printing(FrameKind.OUTPUT, answer)
        for call_ in calls:
            with suppress(ClusterctlError):
                assert call_() is None or call_ is calls[-1], answer
    node.play = asks_everything
    for call_ in calls:
        with suppress(ClusterctlError):
            call_()
    assert SECRET.encode() not in node.received
    assert "clusterctl.launcher.remote.install" not in sys.modules


@pytest.mark.parametrize("value", [2**63, {"float": "nan"}, {"float": "-inf"}, 1e300])
@pytest.mark.parametrize("output", ["table", "json"])
def test_values_that_cannot_be_shown_do_not_hide_other_clusters(
    node: HostileNode,
    output: str,
    value: object,
    fabricate: Callable[..., RunDir],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    found = json.dumps(encoded(replace(statuses_of([fabricate(RUN, {"finished.json": {"time": 2e6}})]), problems=())))
    times = found.replace("1000000.0", json.dumps(value)).replace("2000000.0", json.dumps(value))
    assert times != found
    node.play = printing(FrameKind.OUTPUT, f'{{"returned": {times}}}'.encode())
    assert call(["status", "--cluster", "far,local", "-o", output], monkeypatch) == 0
    shown, errors = capfd.readouterr()
    assert "local" in shown
    assert "Traceback" not in errors


def test_an_answer_without_end_is_an_error(node: HostileNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Answer, "_MOST_BYTES", 2**20)
    sent = 0

    def play(node: HostileNode) -> None:
        nonlocal sent
        node.send(node.mark)
        for sent in range(1000):  # noqa: B007 - counted
            node._output.write(Frame(FrameKind.OUTPUT, b" " * 2**16).packed())

    node.play = play
    with pytest.raises(HostError, match="an answer of more than"):
        clusterctl.runs(cluster="far")
    node.settle()
    assert sent < 100


def test_names_for_completion_are_ids_of_runs(node: HostileNode) -> None:
    names = [RUN, "x; rm -rf ~", "$(id)", "-rf", "a\nb", "../..", ""]
    node.play = printing(FrameKind.OUTPUT, json.dumps({"returned": {"list": names}}).encode())
    completions.main("far")
    assert json.loads(completions._kept("far").read_text()) == [RUN]


HEAD = (".git/HEAD", b"ref: refs/heads/main\n", {})
ARCHIVES: dict[str, Any] = {
    "a git repository": [HEAD, (".git/config", b"[core]\n\tfsmonitor = touch x; false\n", {})],
    "keys": [(".ssh/authorized_keys", b"ssh-ed25519 AAAA mallory\n", {})],
    "another run": [("other-20260102-030405-00a1/run.json", b"{}", {})],
    "a folder of the user": [("Documents/run.json", b"{}", {})],
    "control characters": [("a\x1b]0;owned\x07/run.json", b"{}", {})],
    "a repository inside": [(f"{RUN}/run.json", b"{}", {}), (f"{RUN}/work/.GIT/config", b"", {})],
    "one on macOS": [(f"{RUN}/run.json", b"{}", {}), (f"{RUN}/work/.g\u200cit/config", b"", {})],
    "no time": [(f"{RUN}/run.json", b"{}", {"pax_headers": {"mtime": "nan"}})],
    "endless time": [(f"{RUN}/run.json", b"{}", {"pax_headers": {"mtime": "1e400"}})],
    "late time": [(f"{RUN}/run.json", b"{}", {"pax_headers": {"mtime": "1e18"}})],
    "a size below zero": [(f"{RUN}/run.json", b"{}", {"pax_headers": {"size": "-1024"}})],
    "a link": [(f"{RUN}/l", b"", {"type": b"2", "linkname": "/etc"}), (f"{RUN}/l/x", b"x", {})],
    "a hard link": [(f"{RUN}/l", b"", {"type": b"1", "linkname": "/etc/passwd"})],
    "a pipe": [(f"{RUN}/l", b"", {"type": b"6"})],
    "a sparse file": [(f"{RUN}/l", b"x" * 512, {"type": b"S"})],
    "two folders": [(f"{RUN}/x", b"1", {}), (f"{RUN[:-1]}2/x", b"1", {})],
    "the parent folder": [(f"{RUN}/../../x", b"1", {})],
    "an absolute name": [("/tmp/x", b"1", {})],
    "a file twice": [(f"{RUN}/x", b"1", {}), (f"{RUN}/x", b"2", {})],
    "a file as a folder": [(f"{RUN}/x", b"1", {}), (f"{RUN}/x/y", b"1", {})],
    "an empty name": [(f"{RUN}//x", b"1", {})],
    "only a file": [(RUN, b"1", {})],
    "nothing": [],
}


@pytest.mark.parametrize("kind", [*ARCHIVES, "no archive", "half an archive"])
def test_fetch_unpacks_nothing_but_the_run_that_was_asked_for(
    node: HostileNode, kind: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    whole = archive([(f"{RUN}/{number}", os.urandom(5000), {}) for number in range(9)])
    packed = {"no archive": b"\x1f\x8b" + b"x" * 999, "half an archive": whole[: len(whole) // 2]}
    node.play = printing(FrameKind.OUTPUT, packed[kind] if kind in packed else archive(ARCHIVES[kind]))
    Path("Documents").mkdir()
    Path("Documents", "thesis.txt").write_text("years of work")
    Path(RUN).mkdir()
    Path(RUN, "run.json").write_text("{}")
    before = sorted(Path.cwd().rglob("*"))
    for words in (["cora", "--force"], [RUN, "--force"], [RUN, "--output", "new"], ["@last", "--force"]):
        if words[0] == "@last" and kind == "another run":
            continue  # it is the newest, for all that is known here
        assert call(["fetch", *words], monkeypatch) == 4, words
        errors = capfd.readouterr().err
        assert errors.startswith("error: far.example sent something else than an archive of "), errors
        assert "\nhint: " in errors
        assert "\x1b" not in errors
        assert sorted(Path.cwd().rglob("*")) == before
    assert Path("Documents", "thesis.txt").read_text() == "years of work"


def test_fetch_replaces_only_a_fetched_run(
    node: HostileNode, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    node.play = printing(FrameKind.OUTPUT, archive([(f"{RUN}/run.json", b"{}", {}), (f"{RUN}/a/b", b"1", {})]))
    assert call(["fetch", "cora"], monkeypatch) == 0
    assert call(["fetch", RUN], monkeypatch) == 2
    Path(RUN, "a", "b").write_text("changed")
    assert call(["fetch", "@last", "--force"], monkeypatch) == 0
    assert Path(RUN, "a", "b").read_text() == "1"
    Path("mine").mkdir()
    Path("mine", "thesis.txt").touch()
    Path("linked").symlink_to(RUN)
    for name in ("mine", "linked", "secret.txt"):
        assert call(["fetch", RUN, "--force", "--output", name], monkeypatch) == 2, name
    assert Path("mine", "thesis.txt").exists()
    assert capfd.readouterr().err.count("hint: ") == 4


@pytest.mark.parametrize(
    "words",
    [
        ["submit", "cora", "--dry-run"],
        ["submit", "cora", "--dry-run", "--set", f"env.X_TOKEN={SECRET}"],
        ["status", "--since", "2d"],
        ["attach", RUN, "--", "curl", SECRET],
        ["logs", RUN, "--grep", f"key={SECRET}"],
    ],
)
def test_a_command_line_of_ssh_contains_no_secret(
    node: HostileNode, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.play = printing(FrameKind.OUTPUT, b"")
    mine, far = (tmp_path / "CONFIG" / "clusterctl" / name for name in ("config.toml", "cluster/far.toml"))
    host = 'host = "far.example"\n'
    for of_user, of_cluster in (
        ("", ""), ('[notify]\nurl_variable = "X_TOKEN"\n', ""), (f"# token: {SECRET}\n", ""),
        ("", f'setup = ["login {SECRET}"]\n'), ("", f'[env]\nX = "{SECRET}"\n'), ("", f"# {SECRET}\n"),
    ):  # fmt: skip
        mine.write_text(of_user)
        far.write_text(host + of_cluster)
        call(words, monkeypatch)
        for line in node.lines:
            request = _REQUEST.search(line)
            assert SECRET.encode() not in base64.b64decode(request[1] if request else b"")
    if words[0] == "status":
        assert _REQUEST.search(node.lines[0]), "a request that is public saves a round trip"

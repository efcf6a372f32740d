"""The recipes of docs/guides/tunnels.md, as they are printed there: Jupyter, a debugger in one rank, TensorBoard."""

from __future__ import annotations

import json
import os
import re
import shlex
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from support import scenario
from support.scenario import Stage, wait_until

pytestmark = pytest.mark.long
ROOT = Path(__file__).resolve().parents[2]
GUIDE = (ROOT / "docs" / "guides" / "tunnels.md").read_text()
PYTHON = ROOT / ".venv-recipes" / "bin" / "python"
STEP = """
secret = 6
answer = secret * 7  # a breakpoint
print("the answer is", answer, flush=True)
"""


@pytest.fixture
def user(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> Stage:
    """A user whose environment has clusterctl, Jupyter, debugpy and TensorBoard."""
    monkeypatch.setattr(scenario, "CLUSTERCTL", str(PYTHON.with_name("clusterctl")))
    stage.environment |= {
        "CLUSTERCTL_CLUSTER": stage.cluster,
        "PATH": f"{PYTHON.parent}:{os.environ['PATH']}",
    }
    (stage.folder / "jupyter").mkdir()  # the tests may run as root, which Jupyter must be told
    settings = {"ServerApp": {"allow_root": True}}
    (stage.folder / "jupyter" / "jupyter_server_config.json").write_text(json.dumps(settings))
    return stage


def recipe(title: str, **replaced: str) -> list[list[str]]:
    """The commands of a section of the guide without `clusterctl`, with other ports, for tests side by side."""
    text = GUIDE.partition(f"## {title}\n")[2].partition("\n## ")[0]
    commands = re.findall(r"^    clusterctl (.*?)(?: +#.*)?$", text, re.MULTILINE)
    assert commands
    return [[replaced.get(word, word) for word in shlex.split(command)] for command in commands]


def free_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return str(found.getsockname()[1])


@contextmanager
def connected(stage: Stage, words: list[str]) -> Iterator[int]:
    """The port here of a tunnel, not that on the node, which may be this machine."""
    name, port, *options = words[1:]
    process = stage.begin("tunnel", name, f"{port}:{free_port()}", *options)
    assert process.stdout
    address = process.stdout.readline()
    assert address.startswith("127.0.0.1:"), process.communicate()
    yield int(address.rpartition(":")[2])
    assert process.poll() in (None, 0)  # it ends with the rank


def answer_of(address: str) -> Any:
    """The JSON at `address`, once the server is up."""

    def ask() -> Any:
        with suppress(urllib.error.URLError, ConnectionError), urllib.request.urlopen(address, timeout=60) as answer:
            return json.load(answer)

    return wait_until(ask, 60, address)


def in_jupyter(words: list[str], stage: Stage) -> list[str]:
    """`words` that start Jupyter, where root may."""
    at = words.index("jupyter")
    return [*words[:at], "env", f"JUPYTER_CONFIG_DIR={stage.folder / 'jupyter'}", *words[at:]]


def test_jupyter_on_a_node(user: Stage) -> None:
    port = free_port()
    submit, logs, tunnel, beside = recipe("Jupyter on a node", **{"8888": port})
    done = user.call(*in_jupyter(submit, user))
    assert done.returncode == 0, done.stderr
    token = wait_until(lambda: re.search(r"\?token=(\w+)", user.call(*logs).stdout), 120, "Jupyter to start")[1]
    with connected(user, tunnel) as here:
        assert answer_of(f"http://127.0.0.1:{here}/api/status?token={token}")["kernels"] == 0
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(f"http://127.0.0.1:{here}/api/status", timeout=60)
    assert user.call("cancel", "notebook").returncode == 0

    port = beside[-1]
    done = user.call("submit", "--name", "train", "--nodes", "2", "--", "sleep", "900")
    assert done.returncode == 0, done.stderr
    wait_until(lambda: user.call("attach", "train", "--", "true").returncode == 0, 60, "the ranks to start")
    process = user.begin(*in_jupyter(beside, user))
    assert process.stderr
    token = next(found[1] for line in process.stderr if (found := re.search(r"\?token=(\w+)", line)))
    with connected(user, ["tunnel", "train", port]) as here:
        assert answer_of(f"http://127.0.0.1:{here}/api/status?token={token}")["kernels"] == 0


def test_tensorboard(user: Stage) -> None:
    attach, tunnel = recipe("TensorBoard", **{"6006": free_port()})
    done = user.call("submit", "--name", "train", "--nodes", "1", "--", "sleep", "900")
    assert done.returncode == 0, done.stderr
    wait_until(lambda: user.call("attach", "train", "--", "true").returncode == 0, 60, "the rank to start")
    folder = user.call("attach", "train", "--", "pwd").stdout.strip()
    user.begin(*attach)
    with connected(user, tunnel) as here:
        assert answer_of(f"http://127.0.0.1:{here}/data/environment")["data_location"] in (".", folder)


class Debugger:
    """As much of an editor as a debugger needs: messages of the Debug Adapter Protocol over a connection."""

    def __init__(self, port: int) -> None:
        self.connection = socket.create_connection(("127.0.0.1", port), timeout=120)
        self.received = self.connection.makefile("rb")
        self.count = 0

    def send(self, command: str, **arguments: Any) -> int:
        self.count += 1
        message = {"seq": self.count, "type": "request", "command": command, "arguments": arguments}
        body = json.dumps(message).encode()
        self.connection.sendall(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        return self.count

    def read(self, **wanted: Any) -> dict[str, Any]:
        """The next message with these fields."""
        while True:
            length = 0
            while (line := self.received.readline()) != b"\r\n":
                assert line, "the debugger closed the connection"
                length = int(line.partition(b":")[2]) if line.lower().startswith(b"content-length") else length
            message: dict[str, Any] = json.loads(self.received.read(length))
            if all(message.get(name) == value for name, value in wanted.items()):
                return message

    def ask(self, command: str, **arguments: Any) -> dict[str, Any]:
        answer = self.read(type="response", request_seq=self.send(command, **arguments))
        assert answer["success"], answer
        return dict(answer.get("body") or {})


def test_a_debugger_stops_one_rank(user: Stage) -> None:
    section = GUIDE.partition("## A debugger in one rank")[2]
    snippet = re.findall(r"^```python\n(.*?)^```", section, re.MULTILINE | re.DOTALL)[0]
    launch = json.loads(re.findall(r"^```json\n(.*?)^```", section, re.MULTILINE | re.DOTALL)[0])["configurations"][0]
    program = snippet + STEP
    (user.folder / "train.py").write_text(program)
    port = free_port()
    submit, tunnel = recipe(
        "A debugger in one rank", **{"5678": port, 'env.DEBUG_PORT="5678"': f'env.DEBUG_PORT="{port}"'}
    )
    at = submit.index("--")
    patience = ["--set", "env.DEBUGPY_PROCESS_SPAWN_TIMEOUT=300"]  # of debugpy with its adapter, on a busy machine
    done = user.call(*submit[:at], *patience, *submit[at:])
    assert done.returncode == 0, done.stderr
    run = done.stdout.strip()
    wait_until(lambda: "the answer is 42" in user.call("logs", run, "--rank", "0").stdout, 60, "rank 0, which goes on")
    look = "attach", run, "--rank", "1", "--", "pwd"
    code = wait_until(lambda: user.call(*look).stdout.strip(), 60, "rank 1 to start")
    with connected(user, tunnel) as here:
        wait_until(lambda: _answers(here), 60, "debugpy to listen")
        editor = Debugger(here)
        editor.ask("initialize", adapterID=launch["type"], pathFormat="path")
        mapping = {"localRoot": str(user.folder), "remoteRoot": code}
        attached = editor.send(launch["request"], connect=launch["connect"], pathMappings=[mapping])
        editor.read(event="initialized")
        line = program[: program.index("# a breakpoint")].count("\n") + 1
        source = {"path": str(user.folder / "train.py")}
        (point,) = editor.ask("setBreakpoints", source=source, breakpoints=[{"line": line}])["breakpoints"]
        assert point["verified"], point
        editor.ask("configurationDone")
        assert editor.read(type="response", request_seq=attached)["success"]
        thread = editor.read(event="stopped")["body"]["threadId"]
        frame = editor.ask("stackTrace", threadId=thread)["stackFrames"][0]
        assert (frame["line"], frame["source"]["path"]) == (line, source["path"])
        for expression, value in (("secret", "6"), ("__import__('os').environ['RANK']", "'1'")):
            assert editor.ask("evaluate", expression=expression, frameId=frame["id"])["result"] == value
        assert "the answer" not in user.call("logs", run, "--rank", "1").stdout
        editor.ask("evaluate", expression="secret = 1", frameId=frame["id"], context="repl")
        editor.ask("continue", threadId=thread)
        wait_until(lambda: "the answer is 7" in user.call("logs", run, "--rank", "1").stdout, 60, "rank 1 to go on")
        editor.connection.close()


def _answers(port: int) -> bool:
    """Whether something at the other end of the tunnel keeps a connection open."""
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
        connection.settimeout(2)
        with suppress(TimeoutError):
            return bool(connection.recv(1))
        return True
    return False

"""A remote login node: a real sshd on loopback, whose user has another home, other folders and another PATH."""

from __future__ import annotations

import getpass
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from support.scenario import CLUSTERCTL, Stage, ending, wait_until

SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
SSH = shutil.which("ssh")
RELAY = Path(__file__).with_name("relay.py")
HOST = "far"
_STEERING = ("CLUSTERCTL_", "SLURM_", "SBATCH_", "SRUN_", "XDG_", "SSH_")


def shell_list(values: Mapping[str, str]) -> str:
    """Variables in the format of sshd_config's SetEnv."""
    return " ".join(f'"{name}={value}"' for name, value in values.items())


@dataclass
class Far:
    """The remote machine and this one. They share the disk, but have different homes."""

    folder: Path  # with a short path, as sockets need it
    shared: Path  # shared by all tests of a session: the archive, and the folder it is unpacked into
    server: dict[str, str] = field(default_factory=dict)  # more lines of sshd_config
    client: dict[str, str] = field(default_factory=dict)  # more lines of ssh_config
    variables: dict[str, str] = field(default_factory=dict)  # of the remote user
    through_relay: bool = False
    password: str = ""  # of the user, known only to this sshd and its PAM
    port: int = 0
    _sshd: subprocess.Popen[bytes] | None = None

    def __post_init__(self) -> None:
        self.pythons.mkdir(exist_ok=True)
        for name in ("home", "bin", "here/bin", "here/run", "here/config/clusterctl/cluster", "link", "etc"):
            (self.folder / name).mkdir(parents=True)
        (self.folder / "here" / "run").chmod(0o700)
        self.variables = {
            "HOME": str(self.home),
            "PATH": f"{self.bin}:{self.pythons}:/usr/bin:/bin",
            "XDG_DATA_HOME": str(self.shared / "data"),
            "XDG_STATE_HOME": str(self.folder / "state"),
            "XDG_CACHE_HOME": str(self.folder / "cache"),
            "XDG_CONFIG_HOME": str(self.folder / "config"),
            "XDG_RUNTIME_DIR": str(self.folder / "none"),
            **self.variables,
        }
        for name in ("python", "python3.11"):
            with suppress(FileExistsError):
                (self.pythons / name).symlink_to(Path(sys.executable).resolve())
        for key in ("host", "user"):
            _make_key(self.etc / key)
        shutil.copy(self.etc / "user.pub", self.etc / "authorized")
        self._write_wrapper()

    @property
    def etc(self) -> Path:
        return self.folder / "etc"

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def bin(self) -> Path:
        """First on the remote PATH."""
        return self.folder / "bin"

    @property
    def pythons(self) -> Path:
        """Next on PATH: what is unpacked for all tests keeps the Python that unpacked it."""
        return self.shared / "bin"

    @property
    def link(self) -> Path:
        """The folder of the relay's files."""
        return self.folder / "link"

    @property
    def installed(self) -> Path:
        return Path(self.variables["XDG_DATA_HOME"]) / "clusterctl" / "remote"

    @property
    def environment(self) -> dict[str, str]:
        """The environment of commands on this machine."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(_STEERING)}
        here = self.folder / "here"
        return kept | {
            "PATH": f"{here / 'bin'}:{os.environ['PATH']}",
            "XDG_RUNTIME_DIR": str(here / "run"),
            "XDG_CONFIG_HOME": str(here / "config"),
            "XDG_STATE_HOME": str(here / "state"),
            "XDG_DATA_HOME": str(here / "data"),
            "XDG_CACHE_HOME": str(self.shared / "cache"),
            "NO_COLOR": "1",
        }

    def write_cluster(self, text: str, name: str = "far") -> None:
        folder = self.folder / "here" / "config" / "clusterctl" / "cluster"
        (folder / f"{name}.toml").write_text(f'host = "{HOST}"\n{text}', encoding="utf-8")

    def start(self) -> None:
        """Start sshd, at first on a free port and later on the same one."""
        self.port = self.port or _free_port()
        lines = {
            "Port": str(self.port),
            "ListenAddress": "127.0.0.1",
            "HostKey": str(self.etc / "host"),
            "AuthorizedKeysFile": str(self.etc / "authorized"),
            "StrictModes": "no",
            "UsePAM": "no",
            "PidFile": "none",
            "PrintMotd": "no",
            "SetEnv": shell_list(self.variables),
            **self.server,
        }
        (self.etc / "sshd_config").write_text("".join(f"{name} {value}\n" for name, value in lines.items()))
        key = " ".join((self.etc / "host.pub").read_text().split()[:2])
        if not (self.etc / "known").exists():
            (self.etc / "known").write_text(f"[127.0.0.1]:{self.port} {key}\n")
        options = {
            "HostName": "127.0.0.1",
            "Port": str(self.port),
            "IdentityFile": str(self.etc / "user"),
            "IdentitiesOnly": "yes",
            "IdentityAgent": "none",
            "UserKnownHostsFile": str(self.etc / "known"),
            "GlobalKnownHostsFile": "/dev/null",
            "StrictHostKeyChecking": "yes",
        }
        if self.through_relay:
            options["ProxyCommand"] = shlex.join(
                [sys.executable, "-I", "-S", str(RELAY), str(self.port), str(self.link)]
            )
            options["CheckHostIP"] = "no"
            options["HostKeyAlias"] = f"[127.0.0.1]:{self.port}"
        options |= self.client
        (self.etc / "ssh_config").write_text(
            f"Host {HOST}\n" + "".join(f"  {name} {value}\n" for name, value in options.items())
        )
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        words = [str(SSHD), "-D", "-f", str(self.etc / "sshd_config"), "-E", str(self.etc / "log")]
        if self.password:
            words = ["unshare", "--mount", "sh", "-c", f'{self._password_files()}exec "$@"', "sh", *words]
        self._sshd = subprocess.Popen(words, stdin=subprocess.DEVNULL)
        try:
            wait_until(self._answers, 20, "sshd to listen")
        except AssertionError:
            pytest.skip(f"sshd does not start: {(self.etc / 'log').read_text().strip()[-300:]}")

    def stop(self) -> None:
        """End sshd and its connections; processes that were started there continue."""
        if self._sshd:
            self.cut()
            self._sshd.kill()
            self._sshd.wait()
            self._sshd = None

    def restart(self) -> None:
        self.stop()
        self.start()

    def cut(self) -> None:
        """Break the connections: end sshd's sessions, and ssh's master."""
        ended = [*self.sessions(), *self.masters()]
        for pid in ended:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not any(map(_runs, ended)), 20, "the connections to end")

    def sessions(self) -> list[int]:
        """The processes of sshd's connections."""
        assert self._sshd
        found, waiting = [], [self._sshd.pid]
        while waiting:
            for pid in _children(waiting.pop()):
                if _name(pid).startswith("sshd") and _runs(pid):
                    found.append(pid)
                    waiting.append(pid)
        return found

    def masters(self) -> list[int]:
        """The ssh masters on this side, recognized by the folder of their sockets."""
        sockets = os.fsencode(self.folder / "here" / "run")
        found = []
        for pid, words in processes().items():
            is_master = b"-M" in words or words[-1].endswith(b"[mux]") or b"[mux]" in words[0]
            if is_master and any(sockets in word for word in words):
                found.append(pid)
        return found

    def _answers(self) -> bool:
        assert self._sshd
        if self._sshd.poll() is not None:
            raise AssertionError("sshd ended")
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection:
            return bool(connection.recv(4).startswith(b"SSH"))
        return False

    def _password_files(self) -> str:
        """Shell commands that mount a password for this user, and PAM rules that ask for it, over those in /etc."""
        hashed = subprocess.run(
            ["openssl", "passwd", "-6", "-stdin"], input=self.password, capture_output=True, text=True, check=True
        ).stdout.strip()
        user = getpass.getuser()
        others = [line for line in Path("/etc/shadow").read_text().splitlines() if not line.startswith(f"{user}:")]
        rules = ["auth required pam_unix.so", "account required pam_permit.so", "session required pam_permit.so"]
        lines = ""
        for name, content in (("shadow", [f"{user}:{hashed}:19000:0:99999:7:::", *others]), ("pam.d/sshd", rules)):
            ours = self.etc / name.replace("/", "-")
            ours.write_text("".join(f"{line}\n" for line in content))
            lines += f"mount --bind {shlex.quote(str(ours))} /etc/{name} && "
        return lines

    def _write_wrapper(self) -> None:
        """Write an `ssh` that uses the tests' configuration instead of the user's."""
        wrapper = self.folder / "here" / "bin" / "ssh"
        config = shlex.quote(str(self.etc / "ssh_config"))
        wrapper.write_text(f'#!/bin/sh\nexec {shlex.quote(str(SSH))} -F {config} "$@"\n')
        wrapper.chmod(0o700)


@dataclass
class FarStage(Stage):
    """A scenario whose commands run here and whose jobs run on the remote machine."""

    far: Far = None  # type: ignore[assignment]
    settings: str = ""  # of the cluster file, besides `runs`

    def keep_runs_in(self, folder: Path) -> None:
        super().keep_runs_in(folder)
        self.far.write_cluster(f"runs = {json.dumps(str(folder))}\n{self.settings}")

    def do(self, *words: str, code: int = 0, answer: str = "") -> str:
        """Run a command for the remote cluster, expect the exit code `code`, and return its output."""
        before, dashes, after = _parted(words)
        done = subprocess.run(
            [CLUSTERCTL, *before, "--cluster", "far", *dashes, *after],
            cwd=self.folder, env=self.environment, input=answer, capture_output=True, text=True, timeout=120,
            check=False,
        )  # fmt: skip
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout if code == 0 else done.stderr

    def slurm(self, command: str, *words: str) -> str:
        """Run a command of the remote Slurm, or of the emulator."""
        found = sorted(Path(self.far.variables["XDG_STATE_HOME"]).glob(f"clusterctl/emulator/bin-*/{command}"))
        environment = {**os.environ, **self.far.variables}
        path = str(found[-1]) if found else command
        return subprocess.run((path, *words), env=environment, capture_output=True, text=True, check=True).stdout


def _parted(words: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    end = words.index("--") if "--" in words else len(words)
    return words[:end], words[end : end + 1], words[end + 1 :]


def processes() -> dict[int, list[bytes]]:
    """The command lines of all processes, by their ids."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            found[int(path.parent.name)] = path.read_bytes().rstrip(b"\0").split(b"\0")
    return found


@contextmanager
def made(shared: Path, **settings: object) -> Iterator[Far]:
    """A remote machine, up within the block. Skipped if there is no sshd."""
    if SSHD is None or SSH is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)("no sshd; as root: tests/install.sh sshd")
    folder = Path(tempfile.mkdtemp(prefix="far-", dir="/tmp"))
    far = Far(folder, shared, **settings)  # type: ignore[arg-type]
    try:
        far.start()
        yield far
    finally:
        far.stop()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def far_shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shared by all workers: the archive is made once, and unpacked once."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base) / "far"
    folder.mkdir(exist_ok=True)
    return folder


@contextmanager
def staged(far: Far, tmp_path: Path, settings: str = "", kind: str = "emulator") -> Iterator[FarStage]:
    """A project on this machine, and the cluster `far` with its own runs folder."""
    project = tmp_path / "project"
    project.mkdir()
    runs = tmp_path / "runs there"
    settings = f'kind = "{kind}"\npolling_floor = "1s"\npython = "{sys.executable}"\n{settings}'
    stage = FarStage("far", project, far.environment, far=far, settings=settings)
    stage.keep_runs_in(runs)
    with ending(stage):
        yield stage


@pytest.fixture
def far(far_shared: Path) -> Iterator[Far]:
    with made(far_shared) as machine:
        yield machine


@pytest.fixture
def far_stage(far: Far, tmp_path: Path) -> Iterator[FarStage]:
    with staged(far, tmp_path) as stage:
        yield stage


def _make_key(path: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True)


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _children(pid: int) -> list[int]:
    with suppress(OSError):
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def _name(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


def _runs(pid: int) -> bool:
    """Whether the process exists and is not a zombie."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False

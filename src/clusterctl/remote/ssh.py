"""One connection of the system's ssh to a host, shared by all commands of this user: asked for a password once.

A master of our own (ControlMaster) with a private socket; everything else follows ssh's own configuration. A command
that finds no master starts one; where that needs an answer from a person, ssh itself asks on the terminal.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import signal
import socket
import subprocess
import tempfile
import time
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from clusterctl.errors import HostError
from clusterctl.runs.files import make_private
from clusterctl.runs.ownership import require_own

if TYPE_CHECKING:
    from collections.abc import Iterator

CONNECT_SECONDS = 15
KEPT_HOURS = 8  # without a command
_MASTER_SECONDS = 180  # for someone to find their second factor
_LONGEST_SOCKET = 80  # ssh adds 17 characters, and the system takes 107
_ALIVE = ("-oServerAliveInterval=5", "-oServerAliveCountMax=3")
_ASKS = ("permission denied (", "too many authentication failures", "no more authentication methods")
_LOOPBACK = "127.0.0.1"
_REFUSED = "session open refused by peer"  # beyond MaxSessions, usually 10
_CHANGED = ("host identification has changed", "host key verification failed")


def session(host: str, command: str) -> subprocess.Popen[bytes]:
    """Start `command` on `host` through the master; its three streams are pipes.

    It fails at once where there is no master: it must neither ask nor connect by itself. Ctrl-C does not reach it.
    """
    options = ("-oControlMaster=no", "-oBatchMode=yes", "-oProxyCommand=exit 255", "-oLogLevel=ERROR", "-T")
    try:
        return subprocess.Popen(
            ["ssh", f"-S{socket_of(host)}", *options, "--", host, command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        raise HostError("there is no ssh on this machine", "install OpenSSH's client") from error


def connect(host: str, *, ask: bool = True) -> bool:
    """Start the master of `host`; False where another command has. Raises HostError.

    With `ask`, and a terminal, ssh may ask for a password, a code, or whether to trust the host.
    """
    with _alone(host):
        if _is_there(host):
            return False
        terminal = ask and _has_terminal()
        began = time.monotonic()
        with tempfile.TemporaryFile() as words:
            code = _start_master(host, words.fileno(), terminal)
            words.seek(0)
            complaint = words.read().decode(errors="replace").strip()
        if code:
            raise failure(host, complaint, terminal=terminal, seconds=time.monotonic() - began)
        return True


def bring_port(host: str, here: int, there: int) -> None:
    """Let `here`, a port of this machine's loopback, lead to `there`, a web server's on the loopback of `host`.

    It does for as long as the master lives, or until `leave_port`. Raises HostError.
    """
    done = _control(host, "forward", f"-L{_LOOPBACK}:{here}:{_LOOPBACK}:{there}")
    if done.returncode:
        last = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise HostError(f"cannot bring a port of {host} to port {here}: {last}", "take another one: --port N")
    with suppress(OSError), socket.create_connection((_LOOPBACK, here), timeout=CONNECT_SECONDS) as asked:
        asked.sendall(b"HEAD / HTTP/1.0\r\n\r\n")
        if asked.recv(1):
            return
    leave_port(host, here, there)
    raise HostError(f"{host} brings no port here: its sshd has AllowTcpForwarding no", f"run it there: ssh {host}")


def leave_port(host: str, here: int, there: int) -> None:
    """End what `bring_port` began."""
    _control(host, "cancel", f"-L{_LOOPBACK}:{here}:{_LOOPBACK}:{there}")


def failure(host: str, complaint: str, *, terminal: bool, seconds: float = 0) -> HostError:
    """Why there is no connection, judged by ssh's own `complaint`."""
    last = next((line.strip() for line in reversed(complaint.splitlines()) if line.strip()), "")
    low = complaint.lower()
    if _REFUSED in low:
        return HostError(
            f"{host} takes no more commands at once (MaxSessions of its sshd)", "end a command that goes on"
        )
    if any(words in low for words in _CHANGED):
        return HostError(f"{host}: ssh does not trust this host:\n{complaint}", f"in a terminal: ssh {host}")
    if any(words in low for words in _ASKS):
        if terminal:
            return HostError(f"{host} did not let you in: {last}", f"does this work? ssh {host}")
        hint = f"log in once in a terminal, and it is kept for {KEPT_HOURS} hours: clusterctl status --cluster NAME"
        return HostError(f"{host} asks for a password or a code, and there is no terminal to ask at: {last}", hint)
    if seconds >= _MASTER_SECONDS:
        return HostError(f"{host} did not answer within {_MASTER_SECONDS} s", f"does this work? ssh {host}")
    return HostError(f"cannot connect to {host}: {last or 'ssh gave no reason'}", f"does this work? ssh {host}")


def socket_of(host: str) -> Path:
    """The socket of the master of `host`, in a folder that is private and on this machine."""
    return _folder() / hashlib.sha256(host.encode()).hexdigest()[:16]


def _folder() -> Path:
    runtime = Path(os.environ.get("XDG_RUNTIME_DIR") or "/nonexistent")
    places = [runtime / "clusterctl-ssh"] if runtime.is_dir() and os.access(runtime, os.W_OK) else []
    places.append(Path(f"/tmp/clusterctl-ssh-{os.geteuid()}"))
    place = next(place for place in places if len(str(place)) < _LONGEST_SOCKET or place == places[-1])
    make_private(place)
    require_own(place, f"it is somebody's trap, or a leftover: look at it with: ls -ld {place}")
    return place


def _start_master(host: str, log: int, terminal: bool) -> int:
    """ssh's exit code: 0 when the master is up, and goes on in the background."""
    asking = () if terminal else ("-oBatchMode=yes",)
    words = ["ssh", f"-S{socket_of(host)}", "-M", "-N", "-f", f"-oControlPersist={KEPT_HOURS}h"]
    words += [f"-oConnectTimeout={CONNECT_SECONDS}", *_ALIVE, *asking, "--", host]
    try:
        process = subprocess.Popen(
            words,
            stdin=None if terminal else subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=log,
            process_group=0 if terminal else None,
            start_new_session=not terminal,
        )
    except OSError as error:
        raise HostError("there is no ssh on this machine", "install OpenSSH's client") from error
    with process, _in_front(process.pid) if terminal else nullcontext():
        try:
            code = process.wait(_MASTER_SECONDS)
        except BaseException as error:
            process.kill()
            if isinstance(error, subprocess.TimeoutExpired):
                return 255
            raise
    if code == -signal.SIGINT:
        raise KeyboardInterrupt
    return code


@contextmanager
def _in_front(group: int) -> Iterator[None]:
    """Within it the terminal belongs to the process group `group`, so that ssh can ask there.

    The group is not ours: what the master leaves in it, such as a ProxyCommand, must outlive a Ctrl-C of this command.
    """
    terminal = os.open("/dev/tty", os.O_RDWR | os.O_CLOEXEC)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})  # which stops who takes the terminal from behind
    try:
        with suppress(OSError):  # it has ended already
            os.tcsetpgrp(terminal, group)
            os.killpg(group, signal.SIGCONT)  # it may have been stopped for asking too early
        yield
    finally:
        os.tcsetpgrp(terminal, os.getpgrp())
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTTOU})
        os.close(terminal)


def _is_there(host: str) -> bool:
    if not socket_of(host).exists():
        return False
    if _control(host, "check").returncode == 0:
        return True
    with suppress(FileNotFoundError):
        socket_of(host).unlink()  # of one that died
    return False


def _control(host: str, command: str, *options: str) -> subprocess.CompletedProcess[bytes]:
    """Ask the master of `host` for something."""
    words = ["ssh", f"-S{socket_of(host)}", f"-O{command}", *options, "--", host]
    return subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, check=False)


@contextmanager
def _alone(host: str) -> Iterator[None]:
    """One process at a time: of two masters, the second would go on without a socket, for ever."""
    with socket_of(host).with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # on this machine's own disk
        yield


def _has_terminal() -> bool:
    """Whether ssh could ask somebody: not from behind, where a shell has put this command with `&`."""
    try:
        terminal = os.open("/dev/tty", os.O_RDWR | os.O_CLOEXEC)
        try:
            return os.tcgetpgrp(terminal) == os.getpgrp()
        finally:
            os.close(terminal)
    except OSError:
        return False

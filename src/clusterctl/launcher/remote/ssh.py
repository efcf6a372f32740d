"""One connection of the system's ssh to a host, shared by all commands of this user, so that ssh prompts only once.

Uses its own master (ControlMaster) with a private socket; everything else follows ssh's configuration. A command that
finds no master starts one; if that needs a password, ssh itself prompts on the terminal.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import signal
import socket
import stat
import subprocess
import tempfile
import time
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from clusterctl.shared.errors import HostError
from clusterctl.shared.record.ownership import make_new

if TYPE_CHECKING:
    from collections.abc import Iterator

CONNECT_SECONDS = 15
KEPT_HOURS = 8  # how long an idle connection is kept
_MASTER_SECONDS = 180  # time to enter a second factor
_LONGEST_FOLDER = 103 - 17 - 17  # bytes: macOS's limit (Linux: 107), less our name in it, less what ssh appends
_ALIVE = ("-oServerAliveInterval=5", "-oServerAliveCountMax=3")
_ASKS = ("permission denied (", "too many authentication failures", "no more authentication methods")
_LOOPBACK = "127.0.0.1"
_REFUSED = "session open refused by peer"  # beyond MaxSessions, usually 10
_CHANGED = ("host identification has changed", "host key verification failed")


def session(host: str, command: str) -> subprocess.Popen[bytes]:
    """Start `command` on `host` through the master; its three streams are pipes.

    It fails immediately without a master: it must neither prompt nor connect by itself. Ctrl-C does not reach it.
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
        raise HostError("ssh is not on PATH", "install the OpenSSH client") from error


def connect(host: str, *, ask: bool = True) -> bool:
    """Start the master of `host`; False if another command already has. Raises HostError.

    With `ask` and a terminal, ssh may prompt for a password, a code, or whether to trust the host.
    """
    # One process at a time: a second master would run forever without a socket.
    with socket_of(host).with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # reliable, on a local disk
        if socket_of(host).exists():
            if _control(host, "check").returncode == 0:
                return False
            with suppress(FileNotFoundError):
                socket_of(host).unlink()  # left by a dead master
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
    """Forward the local loopback port `here` to the loopback port `there` of a web server on `host`.

    The forwarding ends with the master, or with `leave_port`. Raises HostError.
    """
    done = _control(host, "forward", f"-L{_LOOPBACK}:{here}:{_LOOPBACK}:{there}")
    if done.returncode:
        last = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise HostError(f"cannot forward a port of {host} to port {here}: {last}", "choose another port: `port=N`")
    with suppress(OSError), socket.create_connection((_LOOPBACK, here), timeout=CONNECT_SECONDS) as asked:
        asked.sendall(b"HEAD / HTTP/1.0\r\n\r\n")
        if asked.recv(1):
            return
    leave_port(host, here, there)
    raise HostError(f"{host} does not allow port forwarding (AllowTcpForwarding no)", f"run it there: ssh {host}")


def leave_port(host: str, here: int, there: int) -> None:
    """Undo `bring_port`."""
    _control(host, "cancel", f"-L{_LOOPBACK}:{here}:{_LOOPBACK}:{there}")


def failure(host: str, complaint: str, *, terminal: bool, seconds: float = 0) -> HostError:
    """The error for a failed connection, based on ssh's output `complaint`."""
    last = next((line.strip() for line in reversed(complaint.splitlines()) if line.strip()), "")
    low = complaint.lower()
    if _REFUSED in low:
        return HostError(f"too many sessions on {host} (MaxSessions of its sshd)", "end another running command")
    if any(words in low for words in _CHANGED):
        return HostError(f"{host}: ssh does not trust this host:\n{complaint}", f"in a terminal: ssh {host}")
    if any(words in low for words in _ASKS):
        if terminal:
            return HostError(f"{host} denied access: {last}", f"does this work? ssh {host}")
        hint = f"connect once in a terminal; it is kept for {KEPT_HOURS} hours: clusterctl status --cluster NAME"
        return HostError(f"{host} asks for a password or a code, but there is no terminal: {last}", hint)
    if seconds >= _MASTER_SECONDS:
        return HostError(f"{host} did not answer within {_MASTER_SECONDS} s", f"does this work? ssh {host}")
    return HostError(f"cannot connect to {host}: {last or 'no reason given by ssh'}", f"does this work? ssh {host}")


def socket_of(host: str) -> Path:
    """The socket of the master of `host`, in a local folder, maybe in /tmp, that only this user can enter.

    Raises HostError for any other. A link is always refused: its owner could change its target after the check.
    """
    runtime = Path(os.environ.get("XDG_RUNTIME_DIR") or "/nonexistent")
    places = [runtime / "clusterctl-ssh"] if runtime.is_dir() and os.access(runtime, os.W_OK) else []
    places.append(Path(f"/tmp/clusterctl-ssh-{os.geteuid()}"))
    place = next(place for place in places if len(os.fsencode(place)) <= _LONGEST_FOLDER or place == places[-1])
    with suppress(FileExistsError):  # something else of this name is refused below
        make_new(place)
    status = place.lstat()
    # Not mktemp's default folder: on macOS its name is so long that it would not be used.
    hint = "use a folder of yours: export XDG_RUNTIME_DIR=$(mktemp -d /tmp/runtime.XXXXXX)"
    if not stat.S_ISDIR(status.st_mode):
        raise HostError(f"not a folder, but the connection's socket would be in it: {place}", hint)
    if status.st_uid != os.geteuid():
        raise HostError(f"owned by another user, but the connection's socket would be in it: {place}", hint)
    if stat.S_IMODE(status.st_mode) & 0o077:
        raise HostError(f"accessible to others, but holds the connection's socket: {place}", f"chmod 700 {place}")
    return place / hashlib.sha256(host.encode()).hexdigest()[:16]


def _start_master(host: str, log: int, terminal: bool) -> int:
    """Start the master; returns ssh's exit code, 0 if it is connected and continues in the background."""
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
    """A context in which the terminal belongs to the process group `group`, so that ssh can prompt there.

    The group is not ours, because processes that the master leaves in it, such as a ProxyCommand, must survive Ctrl-C.
    """
    terminal = os.open("/dev/tty", os.O_RDWR | os.O_CLOEXEC)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})  # would stop a background process taking the terminal
    try:
        with suppress(OSError):  # it has already ended
            os.tcsetpgrp(terminal, group)
            os.killpg(group, signal.SIGCONT)  # it may have been stopped for prompting too early
        yield
    finally:
        os.tcsetpgrp(terminal, os.getpgrp())
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTTOU})
        os.close(terminal)


def _control(host: str, command: str, *options: str) -> subprocess.CompletedProcess[bytes]:
    """Send a control command to the master of `host`."""
    words = ["ssh", f"-S{socket_of(host)}", f"-O{command}", *options, "--", host]
    return subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, check=False)


def _has_terminal() -> bool:
    """Whether ssh can prompt: not if a shell runs this command in the background with `&`."""
    try:
        terminal = os.open("/dev/tty", os.O_RDWR | os.O_CLOEXEC)
        try:
            return os.tcgetpgrp(terminal) == os.getpgrp()
        finally:
            os.close(terminal)
    except OSError:
        return False

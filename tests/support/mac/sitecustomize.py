"""Makes a Python with this folder on PYTHONPATH behave as on macOS: no /proc, and none of the calls of Linux alone."""

import os
import select
import signal
import socket
import stat
import sys
from contextlib import suppress

ONLY_LINUX = {
    os: "copy_file_range eventfd fdatasync getrandom getresuid getxattr listxattr memfd_create pidfd_open "
    "posix_fadvise posix_fallocate removexattr sched_getaffinity sched_setaffinity setns setresuid setxattr splice "
    "unshare",
    select: "epoll poll",
    signal: "pidfd_send_signal sigtimedwait sigwaitinfo",
    socket: "AF_NETLINK AF_PACKET AF_VSOCK SO_PEERCRED SOCK_CLOEXEC SOCK_NONBLOCK",
}
for module, names in ONLY_LINUX.items():
    for name in names.split():
        with suppress(AttributeError):
            delattr(module, name)
for name in [
    name for name in vars(os) if name.startswith(("MFD_", "SCHED_", "EFD_", "CLONE_", "POSIX_FADV", "O_TMPFILE"))
]:
    delattr(os, name)

import selectors  # noqa: E402 - after the calls that it looks for have gone


class _Kqueue(selectors.SelectSelector):
    """The default selector of macOS, which refuses devices other than terminals."""

    def register(self, fileobj, events, data=None):
        descriptor = fileobj if isinstance(fileobj, int) else fileobj.fileno()
        if stat.S_ISCHR(os.fstat(descriptor).st_mode) and not os.isatty(descriptor):
            raise OSError(22, "Invalid argument")
        return super().register(fileobj, events, data)


selectors.DefaultSelector = _Kqueue
for name in ("EpollSelector", "PollSelector"):  # a .pth file of the environment may have imported the module before
    with suppress(AttributeError):
        delattr(selectors, name)


def _refuse(event: str, arguments: tuple[object, ...]) -> None:
    if event in ("open", "os.listdir", "os.scandir") and str(arguments[0]).startswith(("/proc/", "/sys/")):
        raise FileNotFoundError(2, "No such file or directory", arguments[0])


sys.addaudithook(_refuse)
sys.platform = "darwin"

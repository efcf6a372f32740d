"""The first process of a node, in namespaces of the node's own: sets it up, starts slurmd, and reaps its children.

Run as a script, by path: it starts faster without the package. `init.py NODE ADDRESS FOLDER`
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path


def main(node: str, address: str, folder: str) -> None:
    socket.sethostname(node)
    mount("-t", "tmpfs", "tmpfs", "/dev/shm")
    for name in ("hosts", "nsswitch.conf"):  # this host would ask a name server that no node can reach
        if Path("/etc", name).exists():
            mount("--bind", f"{folder}/etc/{name}", f"/etc/{name}")
    while not is_plugged(address):
        time.sleep(0.005)
    subprocess.Popen(["slurmd", "-D", "-N", node])
    while True:  # tasks outlive a slurmd that crashed, as they do on a real node
        try:
            os.wait()
        except ChildProcessError:
            time.sleep(1)


def mount(*words: str) -> None:
    subprocess.run(["mount", *words], check=True)


def is_plugged(address: str) -> bool:
    """Whether this node has its address yet, which is given to it from outside."""
    with socket.socket() as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True


if __name__ == "__main__":
    main(*sys.argv[1:])

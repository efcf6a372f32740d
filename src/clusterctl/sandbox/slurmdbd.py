"""slurmdbd and its MariaDB: Slurm's memory of jobs that have ended."""

from __future__ import annotations

import os
import pwd
import subprocess
from typing import TYPE_CHECKING

from clusterctl.errors import SlurmError
from clusterctl.sandbox import marked_processes

if TYPE_CHECKING:
    from clusterctl.sandbox.description import Sandbox


def start_accounting(sandbox: Sandbox) -> None:
    """Make an empty database and start slurmdbd on it. slurmctld wants to find its cluster in it."""
    defaults = f"--defaults-file={sandbox.path}/etc/my.cnf"
    (sandbox.path / "mysql").mkdir(mode=0o700)
    _run(sandbox, "mariadb-install-db", defaults, "--auth-root-authentication-method=socket", "--skip-test-db")
    database = str(sandbox.path / "run" / "mysql.socket")
    marked_processes.serve(sandbox.path, "mariadbd", ["mariadbd", defaults], sandbox.log("mariadbd"), database)
    marked_processes.serve(
        sandbox.path,
        "slurmdbd",
        ["slurmdbd", "-D"],
        sandbox.log("slurmdbd"),
        (sandbox.address, sandbox.port_of("slurmdbd")),
        {"MYSQL_UNIX_PORT": database},  # slurmdbd.conf has no word for it
    )
    user = pwd.getpwuid(os.geteuid()).pw_name
    for words in ("cluster sandbox", "account main cluster=sandbox", f"user {user} account=main cluster=sandbox"):
        _run(sandbox, "sacctmgr", "--immediate", "--quiet", "add", *words.split())


def _run(sandbox: Sandbox, *argv: str) -> None:
    environment = marked_processes.environment(sandbox.path, argv[0])
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        raise SlurmError(f"{argv[0]}: {(done.stderr or done.stdout).strip()}")

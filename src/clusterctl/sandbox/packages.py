"""Which of Debian's and Ubuntu's packages a sandbox needs that are not installed."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

from clusterctl.errors import SlurmError
from clusterctl.sandbox.marked_processes import PATH

if TYPE_CHECKING:
    from clusterctl.sandbox.description import SandboxRequest

# Command -> the package that brings it.
_ALWAYS = {"munged": "munge", "slurmctld": "slurmctld", "slurmd": "slurmd", "sbatch": "slurm-client"}
_ACCOUNTING = {"slurmdbd": "slurmdbd", "mariadbd": "mariadb-server", "mariadb-install-db": "mariadb-server"}
_NAMESPACES = {"ip": "iproute2", "unshare": "util-linux"}


def check_packages(request: SandboxRequest, path: str = PATH) -> None:
    """Raise one SlurmError that names all that is missing."""
    needed = _ALWAYS | (_ACCOUNTING if request.accounting else {}) | (_NAMESPACES if os.geteuid() == 0 else {})
    missing = {command: package for command, package in needed.items() if shutil.which(command, path=path) is None}
    if missing:
        raise SlurmError(
            f"not installed here: {', '.join(missing)}",
            f"apt-get install -y --no-install-recommends {' '.join(dict.fromkeys(missing.values()))}",
        )

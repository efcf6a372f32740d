"""The names of runs on another machine for shell completion: cached here, and updated in the background.

`python -m clusterctl.launcher.api.remote.far_names CLUSTER` fetches them over the existing connection.
"""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import suppress

from clusterctl.launcher.config.places import cache_folder

TYPE_CHECKING = False  # like typing's; shell completion waits for imports
if TYPE_CHECKING:
    from pathlib import Path

_NEW_SECONDS = 10.0
_PATIENCE_SECONDS = 1.0  # how long completion waits if nothing is cached yet


def far_names(cluster: str, host: str) -> list[str]:
    """The recent IDs of the runs of `cluster`, newest first.

    Without an open connection to `host` nothing is fetched: completion cannot prompt for a password.
    """
    kept = _kept(cluster)
    age = float("inf")
    with suppress(OSError):
        age = time.time() - kept.stat().st_mtime
    if age > _NEW_SECONDS:
        from clusterctl.launcher.remote.ssh import socket_of

        if socket_of(host).exists():
            _ask_from_behind(cluster)
            deadline = time.monotonic() + (_PATIENCE_SECONDS if age == float("inf") else 0)
            while time.monotonic() < deadline and not kept.exists():
                time.sleep(0.02)
    with suppress(OSError, ValueError):
        return [name for name in json.loads(kept.read_text()) if isinstance(name, str)]
    return []


def _kept(cluster: str) -> Path:
    import hashlib

    name = hashlib.sha256(os.fsencode(os.path.abspath(cluster) if "/" in cluster else cluster)).hexdigest()[:16]  # noqa: PTH100
    return cache_folder() / "remote" / "names" / f"{name}.json"


def _ask_from_behind(cluster: str) -> None:
    import subprocess

    from clusterctl.shared.record.interpreter import environment, with_packages

    subprocess.Popen(
        with_packages(sys.executable, "-m", __name__, cluster),
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def main(cluster: str) -> None:
    """Cache the names of the runs of `cluster`."""
    from clusterctl.launcher.api.remote.cluster import remote_cluster
    from clusterctl.launcher.api.remote.operations import ask, understood
    from clusterctl.launcher.observe.run_names import is_run_id
    from clusterctl.shared.record.files import write_json
    from clusterctl.shared.record.ownership import make_private

    kept = _kept(cluster)
    make_private(kept.parent)
    with suppress(FileNotFoundError):
        os.utime(kept)  # so that the next Tab fetches nothing
    if place := remote_cluster(cluster):
        names = understood(place, "find:names", ask(place, "find:names", {"cluster": cluster}, person=False))
        write_json(kept, [name for name in names if is_run_id(name)])  # the shell inserts them into the command line


if __name__ == "__main__":
    main(sys.argv[1])

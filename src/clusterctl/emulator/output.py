"""Where output goes: file names with Slurm's replacement symbols, as in `rank_%5t.out`."""

from __future__ import annotations

import os
import pwd
import re
import time

from clusterctl.emulator.virtual_cluster import node_name

_SYMBOL = re.compile(r"%(\d*)(.)", re.DOTALL)


def symbols(job_id: int, job_name: str, node: int) -> dict[str, str]:
    """What stands for what in the names of a job's files. A step adds its own."""
    batch = dict.fromkeys("jJA", str(job_id)) | dict.fromkeys("nt", "0")
    return {**batch, "N": node_name(node), "x": job_name, "u": user_name()}


def expand(pattern: str, symbols: dict[str, str]) -> str:
    """Replace `%x` by `symbols["x"]`, `%5x` by the same padded with zeros, `%%` by `%`.

    Unknown symbols stay. A backslash anywhere switches the replacement off and is dropped (sbatch(1), "filename
    pattern").
    """
    if "\\" in pattern:
        return pattern.replace("\\", "")

    def replace(match: re.Match[str]) -> str:
        width, symbol = match.groups()
        if symbol == "%":
            return "%"
        if symbol not in symbols:
            return match[0]
        value = symbols[symbol]
        return value.zfill(min(int(width), 10)) if width and value.isdigit() else value

    return _SYMBOL.sub(replace, pattern)


def open_output(path: str, *, append: bool) -> int:
    """A descriptor whose writes all go to the end, so that several processes can have it in common."""
    mode = os.O_APPEND if append else os.O_APPEND | os.O_TRUNC
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | mode, 0o666)


def shown_time(seconds: float) -> str:
    """As Slurm shows a time: in local time, or as SLURM_TIME_FORMAT says."""
    return time.strftime(os.environ.get("SLURM_TIME_FORMAT", "%Y-%m-%dT%H:%M:%S"), time.localtime(seconds))


def user_name() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a container may run under a number without a name
        return str(os.getuid())

"""The memory of a process, from /proc."""

from __future__ import annotations

from pathlib import Path


def memory(file: str, *fields: str, pid: int | str = "self") -> int:
    """The sum in bytes of these fields of /proc/PID/`file`, given as their beginnings; 0 if the process has ended.

    `status` has "VmHWM:" (the peak), `smaps_rollup` has "Pss:" and "Private".
    """
    try:
        lines = Path(f"/proc/{pid}/{file}").read_text().splitlines()
    except OSError:
        return 0
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith(fields))

"""A shell beside a rank: a step of its own on the rank's node, which enters the rank's process.

What the rank sees is read off its process, so that it is the same for pyxis's containers, for ours and for none.
"""

from __future__ import annotations

from clusterctl.launch.script import part


def attach_command(srun: str, job_id: str, node: str, pid: int, command: tuple[str, ...], terminal: bool) -> list[str]:
    """srun and its arguments for `command`, or a shell where there is none, beside process `pid` on `node`."""
    flags = [f"--jobid={job_id}", "--overlap", "--nodes=1", "--ntasks=1", f"--nodelist={node}", "--mem=0", "--mpi=none"]
    flags += ["--job-name=attach", *(["--pty"] if terminal else [])]
    return [srun, *flags, "bash", "-c", part("attach.sh"), "attach", str(pid), *command]

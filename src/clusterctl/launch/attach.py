"""A shell beside a rank: a step of its own on the rank's node, which goes where the rank's process is.

What a rank sees - its container's files, its working directory, its environment - is read off its process, so it is
the same for pyxis's containers, for ours and for none.
"""

from __future__ import annotations

from clusterctl.launch.script import part


def attach_flags(job_id: str, node: str, *, terminal: bool) -> list[str]:
    """srun's flags for one more task on `node` of a job that runs, beside what is there."""
    flags = [f"--jobid={job_id}", "--overlap", "--nodes=1", "--ntasks=1", f"--nodelist={node}", "--mem=0", "--mpi=none"]
    return [*flags, "--job-name=attach", *(["--pty"] if terminal else [])]


def attach_command(srun: str, job_id: str, node: str, pid: int, command: tuple[str, ...], terminal: bool) -> list[str]:
    """The whole command line: `command` beside process `pid`, or a shell where there is none."""
    return [
        srun,
        *attach_flags(job_id, node, terminal=terminal),
        "bash",
        "-c",
        part("attach.sh"),
        "attach",
        str(pid),
        *command,
    ]

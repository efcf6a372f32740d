"""A shell beside a rank: a step of its own on the rank's node, which goes where the rank's process is.

What a rank sees - its container's files, its working directory, its environment - is read off its process, so it is
the same for pyxis's containers, for ours and for none.
"""

from __future__ import annotations

# Arguments: the rank's process, as its node numbers it, then the command.
BESIDE = r"""
pid=$1
shift
[ -d "/proc/$pid" ] || { echo "the rank's process is gone: $pid" >&2; exit 1; }
while IFS= read -r -d '' variable; do
  case $variable in SLURM_*|TERM=*|HOME=*) ;; *=*) export "$variable" ;; esac
done <"/proc/$pid/environ"
[ "$#" -ne 0 ] || set -- sh -c 'command -v bash >/dev/null && exec bash || exec sh'
if [ "$(readlink "/proc/$pid/ns/mnt")" = "$(readlink /proc/self/ns/mnt)" ]; then
  cd "/proc/$pid/cwd" && cd "$(pwd -P)" && exec "$@"
fi
user=
[ "$(readlink "/proc/$pid/ns/user")" = "$(readlink /proc/self/ns/user)" ] || user="--user --preserve-credentials"
exec nsenter --target "$pid" $user --mount --root --wd -- "$@"
"""


def attach_flags(job_id: str, node: str, *, terminal: bool) -> list[str]:
    """srun's flags for one more task on `node` of a job that runs, beside what is there."""
    flags = [f"--jobid={job_id}", "--overlap", "--nodes=1", "--ntasks=1", f"--nodelist={node}", "--mem=0", "--mpi=none"]
    return [*flags, "--job-name=attach", *(["--pty"] if terminal else [])]


def attach_command(srun: str, job_id: str, node: str, pid: int, command: tuple[str, ...], terminal: bool) -> list[str]:
    """The whole command line: `command` beside process `pid`, or a shell where there is none."""
    return [srun, *attach_flags(job_id, node, terminal=terminal), "bash", "-c", BESIDE, "attach", str(pid), *command]

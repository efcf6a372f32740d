"""The batch script as a pure function of the plan. What is rendered here is what runs, on Slurm and on the emulator."""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING

from clusterctl.launch.warm import STOPPABLE, head, import_lines
from clusterctl.runs.requests import EXIT_RESTART

if TYPE_CHECKING:
    from clusterctl.launch.plan import Plan


def render(plan: Plan) -> str:
    """The whole script. Everything that a user gave is quoted, for the shell and for sbatch's reading of its lines."""
    return "\n".join(
        [
            "#!/bin/bash",
            *(head(plan.warm) if plan.warm else _sbatch_lines(plan)),
            f"# Rendered by clusterctl {plan.version}; the run directory is the record of what happened.",
            "",
            f"run={quote(str(plan.run.path))}",
            _BEFORE,
            *([STOPPABLE] if plan.warm else []),
            *_exports(plan),
            *_setup(plan),
            *import_lines(plan),
            *([] if plan.warm else ["# One log a rank; the container, if any, is unnamed and goes with the step."]),
            _srun(plan),
            _after(plan),
        ]
    )


def _sbatch_lines(plan: Plan) -> list[str]:
    options: list[tuple[str, str | int | None]] = [
        ("job-name", plan.name),
        *plan.options,
        ("chdir", str(plan.run.path)),  # squeue shows it: a job that lost its submitter is found by it
        ("output", str(plan.slurm_log)),
        ("open-mode", "append"),
    ]
    return [f"#SBATCH --{name}" + ("" if value is None else f"={quote(str(value))}") for name, value in options]


_BEFORE = r"""
# Attempts are numbered; the last one alone can have finished the run: one that was given up for lost may still end.
number=0
while [ -d "$run/attempts/$number" ]; do number=$((number + 1)); done
grep -qs "\"attempt\": $((number - 1))," "$run/finished.json" && exit 0
# The tasks unpickle what lies there: whoever else could write it would run as this user.
[ -O "$run" ] && [ -O "$run/submitit" ] || { echo "clusterctl: not this user's own: $run" >&2; exit 77; }

# Claim the next attempt. From here on its host.log takes what this script says.
umask 077
until mkdir "$run/attempts/$number" 2>/dev/null; do
  [ -d "$run/attempts/$number" ] || { echo "clusterctl: cannot write to $run/attempts" >&2; exit 73; }
  number=$((number + 1))
done
attempt=$run/attempts/$number
mkdir "$attempt/events" "$attempt/logs"
exec >>"$attempt/host.log" 2>&1

signal=
trap 'signal=TERM' TERM # of a time limit, scancel or preemption: note it, wait for srun, record the end
printf -v start '%(%s)T' -1 # a builtin: on a node that is being shut down no program may start any more
# What says how it ended is written over itself, at the same length: a disk that is full by then takes it all the same.
put() { # file, content
  local try
  for try in {1..30}; do
    printf "%-$((${#SLURM_JOB_NODELIST} + 400))s\n" "$2" 1<>"$1" && return
    [ "$try" -gt 1 ] || echo "clusterctl: cannot write $1: trying again for half a minute"
    sleep 1
  done
  return 1
}
record() { # name, further JSON fields
  local text
  printf -v text '{"attempt": %d, "job_id": "%s", "restart_count": %d, "nodes": "%s", "start": %d%s}' \
    "$number" "$SLURM_JOB_ID" "${SLURM_RESTART_COUNT:-0}" "$SLURM_JOB_NODELIST" "$start" "$2"
  put "$attempt/$1" "$text"
}
record .host.json "" && mv "$attempt/.host.json" "$attempt/host.json"
put "$attempt/.finished.json" "{}"

# submitit names the pickle after the job when sbatch has answered; should it have died before, the job finds it anyway.
[ -e "$run/submitit/${SLURM_JOB_ID}_submitted.pkl" ] ||
  ln "$run/submitit/waiting.pkl" "$run/submitit/${SLURM_JOB_ID}_submitted.pkl" 2>/dev/null ||
  cp -n "$run/submitit/waiting.pkl" "$run/submitit/${SLURM_JOB_ID}_submitted.pkl"

export CLUSTERCTL_RUN_DIR=$run CLUSTERCTL_ATTEMPT=$number SUBMITIT_EXECUTOR=slurm"""


def _exports(plan: Plan) -> list[str]:
    unset = [f"unset {' '.join(plan.unset)}"] if plan.unset else []
    return unset + [f"export {name}={quote(value)}" for name, value in plan.exports]


def _setup(plan: Plan) -> list[str]:
    return ["", "# The cluster's own lines.", *plan.setup, ""] if plan.setup else [""]


# The warning may come before Python can take it, and would kill it: it is held back until the task asks for it. It is
# lost where env cannot do that (GNU coreutils before 8.31, busybox).
_HOLD = "env --block-signal=USR2"
HOLD_WARNING = f"""sh -c 'trap "" USR2; {_HOLD} true 2>/dev/null && set -- {_HOLD} "$@"; exec "$@"' sh"""


def _srun(plan: Plan) -> str:
    lines = [
        "stoppable srun" if plan.warm else "srun",
        *(quote(flag) for flag in (*plan.flags, f"--chdir={plan.workdir}")),
        '--output="$attempt/logs/rank_%5t.out" --error="$attempt/logs/rank_%5t.err"',
        HOLD_WARNING,
        *_flag_by_flag(plan.runner),
        f'{quote(plan.python)} -u -m submitit.core._submit "$run/submitit"',
    ]
    return " \\\n  ".join(lines)


def _flag_by_flag(words: tuple[str, ...]) -> list[str]:
    """Lines of `words`, each long flag on one of its own."""
    lines: list[str] = []
    for word in words:
        if lines and not word.startswith("--"):
            lines[-1] += f" {quote(word)}"
        else:
            lines.append(quote(word))
    return lines


def _after(plan: Plan) -> str:
    return f"""code=$?
printf -v end '%(%s)T' -1

superseded() {{ [ -d "$run/attempts/$((number + 1))" ]; }}
# A task asks for a restart through a file, as inside a container there is no scontrol.
asked() {{ grep -qs "\\"attempt\\": $number," "$run/requeue.json"; }}
# When a node is lost srun ends with 0 all the same: the run is finished when every rank has said so.
ended_well() {{
  [ "$(cat "$attempt"/events/*.jsonl 2>/dev/null | grep -c '"event": "exit", "code": 0}}')" -eq {plan.tasks} ]
}}
# A rank that was killed says nothing; one that failed, or was told to leave, says how.
killed() {{ [ -n "$(grep -L '"event": "exit"' "$attempt"/events/*.jsonl 2>/dev/null)" ]; }}
progressed() {{
  if asked; then grep -qs '"progress": true' "$run/requeue.json"
  else compgen -G "$run/checkpoints/$number-*" >/dev/null; fi
}}
# Why this attempt is not followed by another one, though it would need one; nothing if it is.
refusal() {{
  if superseded; then echo "a newer attempt has begun"
  elif [ -e "$run/cancel.json" ]; then echo "the run was cancelled"
  elif ! progressed; then echo "this attempt made no progress"
  elif [ "${{SLURM_RESTART_COUNT:-0}}" -ge {plan.restarts} ]; then echo "its {plan.restarts} restarts are used up"
  fi
}}
if asked; then
  code={EXIT_RESTART}
elif [ "$code" -eq 0 ] && ended_well; then
  if ! superseded; then
    put "$attempt/.finished.json" "{{\\"attempt\\": $number, \\"time\\": $end}}" &&
      mv "$attempt/.finished.json" "$run/finished.json"
  fi
elif [ "$code" -eq 0 ]; then
  code=1 signal=${{signal:-LOST}}
fi
full= # what the ranks had to say may be lost with it
{{ printf . >"$attempt/.room" && [ -s "$attempt/.room" ]; }} 2>/dev/null || full=', "disk_full": true'
record_end() {{ # further JSON fields
  record host.json ", \\"end\\": $end, \\"exit_code\\": $code, \\"signal\\": \\"$signal\\"$full$1"
}}
if [ "$code" -ne 0 ] && [ "$signal" != LOST ] && {{ asked || {{ [ -z "$signal" ] && killed; }}; }}; then
  why=$(refusal)
  if [ -z "$why" ]; then
    record_end ", \\"requeued\\": true" # first: Slurm ends this script while it answers
    {_closing(plan)}scontrol requeue "$SLURM_JOB_ID" && exit "$code"
    why="scontrol requeue failed"
    asked || signal=LOST # with its node, perhaps, and Slurm has started the job again already
  fi
  echo "clusterctl: not started again: $why"
fi
record_end
{_closing(plan)}exit "$code"
"""


def _closing(plan: Plan) -> str:
    """One task on each node tidies up, with a minute for it: a node that is lost would keep srun waiting."""
    if not plan.closing:
        return ""
    srun = 'timeout 60 srun --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 --mpi=none --input=none --quiet'
    return f"{srun} \\\n  {' '.join(map(quote, plan.closing))}\n"

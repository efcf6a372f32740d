#!/bin/bash
#SBATCH --job-name=cora
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
#SBATCH --cpus-per-task=1
#SBATCH --time=00:20:00
#SBATCH --signal=USR2@120
#SBATCH --requeue
#SBATCH --chdir=/runs/cora-20260102-030405-abcd
#SBATCH --output=/runs/cora-20260102-030405-abcd/slurm.log
#SBATCH --open-mode=append
# Rendered by clusterctl 0.0.0; the run directory is the record of what happened.

run=/runs/cora-20260102-030405-abcd

[ -e "$run/finished.json" ] && exit 0
# The tasks unpickle what lies there: whoever else could write it would run as this user.
[ -O "$run" ] && [ -O "$run/submitit" ] || { echo "clusterctl: not this user's own: $run" >&2; exit 77; }

# Claim the next attempt. From here on its host.log takes what this script says.
umask 077
number=0
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
record() { # further JSON fields
  printf '{"attempt": %d, "job_id": "%s", "restart_count": %d, "nodes": "%s", "start": %d%s}\n' \
    "$number" "$SLURM_JOB_ID" "${SLURM_RESTART_COUNT:-0}" "$SLURM_JOB_NODELIST" "$start" "$1" >"$attempt/.host.json" &&
    mv "$attempt/.host.json" "$attempt/host.json"
}
record ""

# submitit names the pickle after the job when sbatch has answered; should it have died before, the job finds it anyway.
[ -e "$run/submitit/${SLURM_JOB_ID}_submitted.pkl" ] ||
  ln "$run/submitit/waiting.pkl" "$run/submitit/${SLURM_JOB_ID}_submitted.pkl" 2>/dev/null ||
  cp -n "$run/submitit/waiting.pkl" "$run/submitit/${SLURM_JOB_ID}_submitted.pkl"

export CLUSTERCTL_RUN_DIR=$run CLUSTERCTL_ATTEMPT=$number SUBMITIT_EXECUTOR=slurm
export OMP_NUM_THREADS=1
export SUBMITIT_LOG_LEVEL=WARNING
export PYTHONPATH=/runs/.code/0123/lib

# One log a rank; the container, if any, is unnamed and goes with the step.
srun \
  --kill-on-bad-exit=1 \
  --cpus-per-task=1 \
  --mpi=none \
  --unbuffered \
  --input=none \
  --chdir=/runs/cora-20260102-030405-abcd \
  --output="$attempt/logs/rank_%5t.out" --error="$attempt/logs/rank_%5t.err" \
  sh -c 'trap "" USR2; exec "$@"' sh \
  /venv/bin/python -u -m submitit.core._submit "$run/submitit"
code=$?
printf -v end '%(%s)T' -1

# When a node is lost srun ends with 0 all the same: the run is finished when every rank has said so.
ended_well() {
  [ "$(cat "$attempt"/events/*.jsonl 2>/dev/null | grep -c '"event": "exit", "code": 0}')" -eq 4 ]
}
if [ "$code" -eq 0 ] && ended_well; then
  printf '{"attempt": %d, "time": %d}\n' "$number" "$end" >"$run/.finished.json"
  mv "$run/.finished.json" "$run/finished.json"
elif [ "$code" -eq 0 ]; then
  code=1 signal=${signal:-LOST}
fi
record ", \"end\": $end, \"exit_code\": $code, \"signal\": \"$signal\""
exit "$code"

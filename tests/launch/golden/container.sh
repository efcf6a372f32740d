#!/bin/bash
#SBATCH --job-name=big
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=8
#SBATCH --cpus-per-task=14
#SBATCH --time=1-00:00:00
#SBATCH --gres=gpu:8
#SBATCH --mem=512G
#SBATCH --signal=USR2@300
#SBATCH --no-requeue
#SBATCH --exclusive
#SBATCH --partition=gpu
#SBATCH --account='it'"'"'s mine'
#SBATCH --mail-type=END,FAIL
#SBATCH --core-spec=2
#SBATCH --contiguous
#SBATCH --chdir=/runs/big-20260102-030405-abcd
#SBATCH --output=/runs/big-20260102-030405-abcd/slurm.log
#SBATCH --open-mode=append
# Rendered by clusterctl 0.0.0; the run directory is the record of what happened.

run=/runs/big-20260102-030405-abcd

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

export CLUSTERCTL_RUN_DIR=$run CLUSTERCTL_ATTEMPT=$number SUBMITIT_EXECUTOR=slurm
unset PYTHONPATH VIRTUAL_ENV
export OMP_NUM_THREADS=14
export SUBMITIT_LOG_LEVEL=WARNING
export PYTHONPATH=/runs/.code/0123/lib:/runs/.code/0123/project
export CLUSTERCTL_INTERFACE=ib0
export NVIDIA_VISIBLE_DEVICES=all
export NVIDIA_DRIVER_CAPABILITIES=compute,utility
export NCCL_DEBUG=WARN
export TRICKY='a'"'"'b "c" $HOME `id` \ 
 é'

# The cluster's own lines.
module purge
export NCCL_SOCKET_IFNAME=ib0

# One log a rank; the container, if any, is unnamed and goes with the step.
srun \
  --kill-on-bad-exit=1 \
  --cpus-per-task=14 \
  --mpi=none \
  --unbuffered \
  --input=none \
  --gpu-bind=none \
  '--container-image=nvcr.io#nvidia/pyg:24.07-py3' \
  --container-mounts=/runs:/runs,/scratch:/scratch \
  --container-workdir=/runs/.code/0123/project \
  --container-readonly \
  --no-container-mount-home \
  --no-container-remap-root \
  --no-container-entrypoint \
  --container-env=CLUSTERCTL_ATTEMPT,CLUSTERCTL_INTERFACE,CLUSTERCTL_RUN_DIR,CUDA_VISIBLE_DEVICES,NCCL_DEBUG,NCCL_SOCKET_IFNAME,NVIDIA_DRIVER_CAPABILITIES,NVIDIA_VISIBLE_DEVICES,OMP_NUM_THREADS,PYTHONPATH,SUBMITIT_EXECUTOR,SUBMITIT_LOG_LEVEL,TRICKY \
  --chdir=/runs/.code/0123/project \
  --output="$attempt/logs/rank_%5t.out" --error="$attempt/logs/rank_%5t.err" \
  sh -c 'trap "" USR2; env --block-signal=USR2 true 2>/dev/null && set -- env --block-signal=USR2 "$@"; exec "$@"' sh \
  /opt/venv/bin/python -u -m submitit.core._submit "$run/submitit"
code=$?
printf -v end '%(%s)T' -1

superseded() { [ -d "$run/attempts/$((number + 1))" ]; }
# A task asks for a restart through a file, as inside a container there is no scontrol.
asked() { grep -qs "\"attempt\": $number," "$run/requeue.json"; }
# When a node is lost srun ends with 0 all the same: the run is finished when every rank has said so.
ended_well() {
  [ "$(cat "$attempt"/events/*.jsonl 2>/dev/null | grep -c '"event": "exit", "code": 0}')" -eq 32 ]
}
# A rank that was killed says nothing; one that failed, or was told to leave, says how.
killed() { [ -n "$(grep -L '"event": "exit"' "$attempt"/events/*.jsonl 2>/dev/null)" ]; }
progressed() {
  if asked; then grep -qs '"progress": true' "$run/requeue.json"
  else compgen -G "$run/checkpoints/$number-*" >/dev/null; fi
}
# Why this attempt is not followed by another one, though it would need one; nothing if it is.
refusal() {
  if superseded; then echo "a newer attempt has begun"
  elif [ -e "$run/cancel.json" ]; then echo "the run was cancelled"
  elif ! progressed; then echo "this attempt made no progress"
  elif [ "${SLURM_RESTART_COUNT:-0}" -ge 0 ]; then echo "its 0 restarts are used up"
  fi
}
if asked; then
  code=75
elif [ "$code" -eq 0 ] && ended_well; then
  if ! superseded; then
    put "$attempt/.finished.json" "{\"attempt\": $number, \"time\": $end}" &&
      mv "$attempt/.finished.json" "$run/finished.json"
  fi
elif [ "$code" -eq 0 ]; then
  code=1 signal=${signal:-LOST}
fi
full= # what the ranks had to say may be lost with it
{ printf . >"$attempt/.room" && [ -s "$attempt/.room" ]; } 2>/dev/null || full=', "disk_full": true'
record_end() { # further JSON fields
  record host.json ", \"end\": $end, \"exit_code\": $code, \"signal\": \"$signal\"$full$1"
}
if [ "$code" -ne 0 ] && [ "$signal" != LOST ] && { asked || { [ -z "$signal" ] && killed; }; }; then
  why=$(refusal)
  if [ -z "$why" ]; then
    record_end ", \"requeued\": true" # first: Slurm ends this script while it answers
    scontrol requeue "$SLURM_JOB_ID" && exit "$code"
    why="scontrol requeue failed"
    asked || signal=LOST # with its node, perhaps, and Slurm has started the job again already
  fi
  echo "clusterctl: not started again: $why"
fi
record_end
exit "$code"

#!/bin/bash
# Rendered by clusterctl 0.0.0; the run directory is the record of what happened.

# sbatch passes on what the submitter's shell exports (launch/shell.sh of clusterctl): functions named like a command
# used below, and shell options, must not affect this script. `module` and the like stay: `setup` may need them.
builtin set +aefkmuvxC +o pipefail +o posix
builtin unset -f : '[' break cat chmod command compgen continue cp echo env eval exec exit export grep kill local mkdir mv od \
  printf read return rm scontrol set sh shopt sleep srun stat timeout touch tr trap true type umask unset wait wc
shopt -u failglob
unset GLOBIGNORE
export -n SHELLOPTS BASHOPTS

run=/runs/big-20260102-030405-abcd
ranks=16
restarts=0 # how often the job may be requeued
dropped=(
  PYTHONPATH
)
exports=(
  OMP_NUM_THREADS=1
  PYTHONPATH=/runs/.code/0123/lib:/runs/big-20260102-030405-abcd/work
  NVIDIA_VISIBLE_DEVICES=all
  NVIDIA_DRIVER_CAPABILITIES=compute,utility
)
python= # for tasks on the host
python_is_named=
setup='
module purge' # the lines of the cluster file and of the job
srun=(
  in_allocation srun
  --overlap
  --job-name=big-20260102-030405-abcd.ranks
  --nodes=2
  --ntasks=16
  --ntasks-per-node=8
  --mem=0
  --time=01:00:00
  --gpus-per-node=8
  --signal=USR2@300
  --kill-on-bad-exit=1
  --cpus-per-task=1
  --mpi=none
  --unbuffered
  --input=none
  --container-name=clusterctl_77_102e8a30
  --container-mounts=/runs:/runs
  --container-workdir=/runs/big-20260102-030405-abcd/work
  --container-readonly
  --no-container-mount-home
  --no-container-remap-root
  --no-container-entrypoint
  --container-env=CLUSTERCTL_ATTEMPT,CLUSTERCTL_RUN_DIR,CUDA_VISIBLE_DEVICES,NVIDIA_DRIVER_CAPABILITIES,NVIDIA_VISIBLE_DEVICES,OMP_NUM_THREADS,PYTHONPATH
  --chdir=/runs/big-20260102-030405-abcd/work
)
task=(
  sh -c 'p=$(command -v "$0") && [ "$(command -v python3)" != "${p%/*}/python3" ] && PATH=${p%/*}:$PATH; exec "$0" "$@"' /opt/venv/bin/python -u -m clusterctl.runs /runs/big-20260102-030405-abcd
)
node_check=()
staging=()
opening=()
closing=()
notifier=()
tracker=()

node_list='node[1-4]' # of allocation 77, which runs this as a step
image_mark=/runs/.warm/77/clusterctl_77_102e8a30
clearing=(
  --overlap
  --job-name=big-20260102-030405-abcd.ranks
  --nodes=4
  --ntasks=4
  --ntasks-per-node=1
  --mem=0
  --mpi=none
  --input=none sh -c 'command -v enroot >/dev/null || exit 0
for name in $(enroot list | grep -Ex "pyxis_($SLURM_JOB_ID)?$0"); do enroot remove --force "$name" || exit; done' '_?clusterctl_77_102e8a30'
)
importing=(
  --overlap
  --job-name=big-20260102-030405-abcd.ranks
  --nodes=4
  --ntasks=4
  --ntasks-per-node=1
  --mem=0
  --mpi=none
  --input=none
  '--container-image=/images/it'"'"'s.sqsh'
  --container-name=clusterctl_77_102e8a30
  --no-container-mount-home
  --no-container-entrypoint true
)

# Only in warm runs (launch/warm.sh of clusterctl). An srun inside a step takes its shape from that step's SLURM_*
# variables: all are unset except those that identify the job.
job=$SLURM_JOB_ID conf=$SLURM_CONF
unset "${!SLURM_@}" "${!SRUN_@}" "${!SBATCH_@}"
SLURM_JOB_NODELIST=$node_list # not exported: srun would take it for a request
export SLURM_JOB_ID=$job
[ -z "$conf" ] || export SLURM_CONF=$conf

# Cancels this run but not its allocation: the ranks get TERM from outside, and this script URG, which srun and other
# programs ignore. Processes that remain are killed.
trap 'signal=TERM' URG
stoppable() {
  [ -z "$signal" ] || return 143
  "$@" &
  local child=$! code waited=0
  wait "$child"
  code=$?
  while kill -0 "$child" 2>/dev/null; do # `wait` was interrupted by a signal
    sleep 1
    [ $((waited += 1)) -ne 30 ] || kill -TERM "$child"
    kill -0 "$child" 2>/dev/null || { wait "$child"; code=$?; }
  done
  return "$code"
}

# The image is unpacked once per node and allocation by the first run; others wait for it. All scripts of an allocation
# run on its first node, so the owner's PID shows whether it is still alive. Without the ready mark, a container of that
# name may be incomplete: pyxis would not notice.
imported() {
  local mark=$image_mark owner code
  until [ -e "$mark/ready" ]; do
    { mkdir -p "$mark.$$" && echo "$$" >"$mark.$$/owner"; } || return 73
    if mv -T "$mark.$$" "$mark" 2>/dev/null; then # atomic: a non-empty folder is not replaced
      stoppable srun "${clearing[@]}" && stoppable srun "${importing[@]}"
      code=$?
      [ "$code" -ne 0 ] || { touch "$mark/ready" && return 0; }
      rm "$mark/owner" # an empty folder can be replaced, and shows the holder that the nodes may need cleaning
      return "$code"
    fi
    rm -r "$mark.$$"
    owner=$(cat "$mark/owner" 2>/dev/null)
    [ -z "$owner" ] || kill -0 "$owner" 2>/dev/null || rm -r "$mark"
    [ -z "$signal" ] || return 143
    sleep 0.5
  done
}

in_allocation() { # the tasks' srun: waits for the image, and can be stopped
  [ "${#importing[@]}" -eq 0 ] || imported || return
  stoppable "$@"
}


# Each run has its own working directory (launch/work.sh of clusterctl): a copy of its code, created atomically before
# the first start. Hard links in the snapshot become separate files.
no_work= # a field of host.json if it is missing
make_work() {
  [ ! -d "$run/work" ] || return 0
  drop_copies "$run"/.work.* # left by an attempt that was killed
  local copy=$run/.work.$number problem
  problem=$({ cp -RP --preserve=mode,timestamps --reflink=auto "$run/code/project" "$copy" && chmod -R u+w "$copy" &&
    { mv -T "$copy" "$run/work" || await [ -d "$run/work" ]; }; } 2>&1) && return
  echo "clusterctl: cannot create $run/work: ${problem%%$'\n'*}"
  [ -n "$signal" ] || no_work=', "no_work": true'
  return 73
}
drop_copies() { # incomplete ones
  local copy
  for copy; do
    [ ! -d "$copy" ] || { chmod -R u+w "$copy" && rm -rf "$copy"; }
  done
}

# The rest is the same for every run (launch/batch.sh of clusterctl); the values above are this run's.
# shellcheck disable=SC2329 # functions that are called by name

# Changes made on other nodes may show up here late and out of order, and a call may fail that would succeed a second
# later: decision 0051. Only the file systems below show changes to all nodes at once.
late=70 # seconds; NFS caches a folder for up to a minute (acdirmax)
case $(stat -f -c %T "$run" 2>/dev/null) in
  btrfs | ceph | ext2/ext3 | f2fs | gpfs | lustre | overlayfs | ramfs | tmpfs | xfs | zfs) late=0 ;;
esac
signal=
await() { # repeats a check while its answer may be out of date
  local deadline=$((SECONDS + late))
  until "$@"; do
    [ "$SECONDS" -lt "$deadline" ] && [ -z "$signal" ] || return 1
    sleep 1
  done
}
with_retries() { # for a command that is safe to repeat
  local try
  for try in {1..5}; do
    "$@" && return
    sleep 1
  done
  return 1
}
renamed() { # from, to: also succeeds if an earlier try worked although it reported an error
  mv -T "$1" "$2" || { [ ! -e "$1" ] && [ -e "$2" ]; }
}

# Attempts are numbered. Only the last one can have finished the run: one that was considered lost may still be ending.
number=0
while [ -d "$run/attempts/$number" ]; do number=$((number + 1)); done
[ ! -e "$run/attempts/$((number - 1))/marks/finished" ] || exit 0
# A run may be queued for days, and someone may delete its files meanwhile.
for gone in "$run/code/lib" "$run/run.json"; do
  await [ -e "$gone" ] ||
    { echo "clusterctl[launch]: removed since submission: $gone; submit the job again" >&2; exit 66; }
done
# The tasks import from there: anyone else with write access could run code as this user.
{ [ -O "$run" ] && [ -O "$run/code/" ] && [ -O "$run/code/lib" ]; } ||
  { echo "clusterctl[launch]: not owned by this user: $run or its code" >&2; exit 77; }

# Claim the next attempt. From here on this script's output goes to its host.log.
umask 077
failed=0
until problem=$(LC_ALL=C mkdir "$run/attempts/$number" 2>&1); do
  case $problem in
    *"File exists"*) number=$((number + 1)) && continue ;; # although it may not be visible here yet
    *"Input/output error"* | *"Stale file handle"*) failed=$((failed + 1)) && sleep 1 ;;
    *) failed=5 ;;
  esac
  [ "$failed" -lt 5 ] || { echo "clusterctl[launch]: cannot write to $run/attempts: $problem" >&2; exit 73; }
done
attempt=$run/attempts/$number
write_secret() { # authenticates the attempt's processes to each other (runs/secret.py)
  od -An -vtx1 -N32 /dev/urandom | tr -d ' \n' >"$attempt/secret" && [ "$(wc -c <"$attempt/secret")" -eq 64 ]
}
log_here() { exec >>"$attempt/host.log" 2>&1; }
with_retries mkdir -p "$attempt/nodes" "$attempt/logs" "$attempt/marks" && with_retries write_secret
echo "=== $number ===" # Slurm appends its messages about the job's end to this log, which all attempts share
with_retries log_here

trap 'signal=TERM' TERM # time limit, scancel or preemption: remember it, wait for srun, record the end
printf -v start '%(%s)T' -1 # a builtin: a node that is shutting down may not start programs any more
# The record of the end overwrites one of the same length, which works even if the disk is full by then.
put() { # file, content
  local try
  for try in {1..30}; do
    printf "%-$((${#SLURM_JOB_NODELIST} + 400))s\n" "$2" 1<>"$1" && return
    [ "$try" -gt 1 ] || echo "clusterctl: cannot write $1: retrying for half a minute"
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
record .host.json "" && with_retries renamed "$attempt/.host.json" "$attempt/host.json"
put "$attempt/.finished.json" "{}"
with_retries touch "$attempt/marks/.finished"

export CLUSTERCTL_RUN_DIR=$run CLUSTERCTL_ATTEMPT=$number
# One environment for all programs (docs/decisions/0043): the folder of the tasks' Python comes first on their PATH,
# preceded by environments that the setup lines activate unless the cluster file names that Python. Environments active
# in the submitter's shell are deactivated first: conda would not move them to the front again. The script's own PATH
# does not get the folder, which may contain another srun.
unset CONDA_SHLVL CONDA_DEFAULT_ENV
[ "$VIRTUAL_ENV/bin" = "${python%/*}" ] || unset VIRTUAL_ENV
[ "$CONDA_PREFIX/bin" = "${python%/*}" ] || unset CONDA_PREFIX
folder=
put_first() {
  local found
  found=$(type -P "$python") && [ "$(type -P python3)" != "${found%/*}/python3" ] || return
  folder=${found%/*}
  PATH=$folder:$PATH
}
[ -n "$python_is_named" ] || put_first
unset "${dropped[@]}"
export "${exports[@]}"
eval "$setup" # the lines of the cluster file and of the job
[ -z "$python_is_named" ] || put_first
[ -z "$python" ] || task=(env "PATH=$PATH" "${task[@]}")
[ "${#node_check[@]}" -eq 0 ] || node_check=("${node_check[0]}" env "PATH=$PATH" "${node_check[@]:1}")
[ "${#tracker[@]}" -eq 0 ] || tracker=(env "PATH=$PATH" "${tracker[@]}")
[ -z "$folder" ] || { PATH=:$PATH && PATH=${PATH/":$folder:"/:} && PATH=${PATH#:}; }

# One task on each node, with a timeout: srun would keep waiting for a lost node.
on_each_node() { # seconds, command
  [ "$#" -eq 1 ] || timeout --kill-after=5 "$1" srun --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 --mpi=none --input=none \
    --quiet "${@:2}"
}
[ "${SLURM_RESTART_COUNT:-0}" -eq 0 ] || on_each_node 300 "${opening[@]}"

# Each node is checked first. Nodes that fail are excluded when the job starts again (runs/node_check.py).
unfit= # the nodes that Slurm must exclude
check_nodes() {
  [ "${#node_check[@]}" -gt 0 ] || return 0
  with_retries mkdir -p "$attempt/check" && on_each_node "${node_check[@]}"
  unfit=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | "${node_check[@]:1}" --judge)
  [ -z "$unfit" ] || return 69
}

# A node that cannot copy the modules to its own disk imports them from the shared one (runs/staging.py).
stage_code() { on_each_node 900 "${staging[@]}" || true; }

# New metrics go to the trackers while the ranks run, and the rest when the tracker's input ends (trackers/on_node.py).
tracking=
tracker_pid=
start_tracker() {
  [ "${#tracker[@]}" -gt 0 ] || return 0
  coproc tracking { trap '' TERM && exec "${tracker[@]}" >&2; }
  tracker_input=${tracking[1]} # bash unsets both as soon as the coprocess has ended
  tracker_pid=$tracking_PID
}

# Slurm numbers a job's steps anew at each start. An srun that was cut off together with its node may still end its step
# when the node returns: every other start leaves a number out, so that this ends no step of ours.
leave_step_out() {
  [ $((${SLURM_RESTART_COUNT:-0} % 2)) -eq 0 ] ||
    timeout --kill-after=5 60 srun --nodes=1 --ntasks=1 --mpi=none --input=none --quiet true || true
}

# One log per rank. The warning may come before Python can handle it, and would kill it: USR2 is blocked until the task
# unblocks it, or ignored if env cannot block signals (GNU coreutils before 8.31, busybox).
make_work && check_nodes && stage_code && leave_step_out && start_tracker && [ -z "$signal" ] && "${srun[@]}" \
  --output="$attempt/logs/rank_%5t.out" --error="$attempt/logs/rank_%5t.err" \
  sh -c 'trap "" USR2; env --block-signal=USR2 true 2>/dev/null && set -- env --block-signal=USR2 "$@"; exec "$@"' sh \
  "${task[@]}"
code=$?
printf -v end '%(%s)T' -1
# A cancellation or preemption sends TERM to one step after another: it may reach the tasks long before this script.
for try in {1..50}; do
  [ "$code" -eq 143 ] && [ -z "$signal" ] || break
  sleep 0.1
done

# scontrol takes the job ID of an array's last element for the whole array.
own_job=$SLURM_JOB_ID
[ -z "$SLURM_ARRAY_JOB_ID" ] || own_job=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID
superseded() { [ -d "$run/attempts/$((number + 1))" ]; }
# Count the ranks in each state, and read their requests, from the names of the marks (runs/marks.py): a task requests a
# restart with a mark because there is no scontrol inside a container. No program is used: a command line cannot hold so
# many names. A listing without the script's own mark has failed.
look() {
  local marks mark try
  for try in {1..5}; do
    shopt -s nullglob dotglob
    marks=("$attempt"/marks/*)
    shopt -u nullglob dotglob
    running=0 left_well=0 asked_to_leave=0 left_badly=0 asked= stuck= listed=
    for mark in "${marks[@]##*/}"; do
      case $mark in
        *.running) running=$((running + 1)) ;;
        *.done) left_well=$((left_well + 1)) ;;
        *.asked) asked_to_leave=$((asked_to_leave + 1)) ;;
        *.ended) left_badly=$((left_badly + 1)) ;;
        restart) asked=yes ;;
        no-progress) stuck=yes ;;
        .finished) listed=yes ;;
      esac
    done
    [ -z "$listed" ] && [ "$try" -lt 5 ] || return 0
    sleep 1
  done
}
# srun exits with 0 even if a node is lost: the run is finished only when every rank has reported it.
ended_well() { [ "$left_well" -eq "$ranks" ]; }
# The mark of a killed rank still reads "running"; one that failed or was asked to leave records how it ended.
killed() { [ "$running" -gt 0 ]; }
begun() { [ "$((running + left_well + asked_to_leave + left_badly))" -gt 0 ]; }
# Whether the marks of other nodes are complete: how each rank ended, and the restart request if a rank left because of
# one.
settled() {
  look
  [ -n "$asked" ] || [ "$((left_well + left_badly))" -eq "$ranks" ]
}
# The image's unpacking was killed, by the warning according to pyxis, or by TERM: a preemption if the job still runs.
interrupted() {
  ! begun && [ "$restarts" -gt 0 ] || return
  if [ "$signal" = TERM ]; then
    [[ $(timeout 5 scontrol show job "$own_job" 2>&1) == *JobState=RUNNING* ]]
  else
    grep -qrsw "terminated with signal $(kill -l USR2)" "$attempt/host.log" "$attempt/logs"
  fi
}
saved() { compgen -G "$run/checkpoints/$number-*" >/dev/null; }
progressed() {
  if [ -n "$asked" ]; then [ -z "$stuck" ]
  elif begun; then saved || { [ "$late" -gt 0 ] && with_retries saved; } # a failed listing is empty
  fi
}
finish() {
  put "$attempt/.finished.json" "{\"attempt\": $number, \"time\": $end}" &&
    with_retries renamed "$attempt/.finished.json" "$run/finished.json" &&
    with_retries renamed "$attempt/marks/.finished" "$attempt/marks/finished"
}
# Why the run is not started again although it is unfinished; empty if it is (runs/requests.py).
refusal() {
  if superseded; then echo superseded
  elif [ -e "$run/cancel.json" ]; then echo cancelled
  elif [ -z "$unfit" ] && ! progressed; then echo no-progress
  elif [ "${SLURM_RESTART_COUNT:-0}" -ge "$restarts" ]; then echo restart-limit
  fi
}
# Slurm may be unreachable for minutes. When it requeues, it sends TERM to the whole script: scontrol must ignore it.
requeue() {
  local answer try deadline=$((SECONDS + 600)) # scontrol itself may wait for two minutes (SlurmctldTimeout)
  for try in {1..60}; do
    ! superseded || return 1 # this script was cut off with its node, and the job runs elsewhere
    answer=$(trap '' TERM; scontrol requeue "$own_job" 2>&1) && return
    [ "$try" -gt 1 ] || echo "clusterctl: scontrol requeue failed: $answer"
    case $answer in
      *"pending execution"*) return ;; # requeued already: by a preemption, or the answer was lost
      *disabled* | *denied* | *"nvalid job id"* | *"nvalid user id"* | *"already completing or completed"*) return 1 ;;
    esac
    [ "$SECONDS" -lt "$deadline" ] && [ ! -e "$run/cancel.json" ] || return 1
    sleep 10
  done
  return 1
}
# Slurm accepts this only for a pending job, which it is once it has been requeued, while this script still runs.
leave_out() {
  [ -z "$unfit" ] || (trap '' TERM; with_retries scontrol update "JobId=$own_job" "ExcNodeList=$unfit") ||
    echo "clusterctl: cannot exclude $unfit from the next start"
}
close() { on_each_node 60 "${closing[@]}"; }

if [ "${SLURM_JOB_NUM_NODES:-2}" -eq 1 ] || [ -n "$unfit" ]; then look; else await settled; fi
if [ -n "$asked" ]; then
  code=75
elif ended_well; then
  code=0 # even if srun, or a process other than the ranks, has failed
  superseded || finish
elif [ "$code" -eq 0 ]; then
  code=1 signal=${signal:-LOST}
fi
full= # if so, messages of the ranks may be lost
{ printf . >"$attempt/.room" && [ -s "$attempt/.room" ]; } 2>/dev/null || full=', "disk_full": true'
drop_copies "$run/.work.$number"
record_end() { # further JSON fields
  record host.json ", \"end\": $end, \"exit_code\": $code, \"signal\": \"$signal\"$no_work$full$1"
}
# At most ten seconds; `clusterctl notify` and `clusterctl track` send the rest later.
report_end() {
  local deadline=$((SECONDS + 10))
  [ -z "$tracker_pid" ] || eval "exec $tracker_input>&-"
  [ "${#notifier[@]}" -eq 0 ] || timeout -k 1 9 "${notifier[@]}" </dev/null || true
  [ -n "$tracker_pid" ] || return 0
  until [ "$SECONDS" -ge "$deadline" ] || ! kill -0 "$tracker_pid"; do sleep 0.1; done 2>/dev/null
  kill -KILL "$tracker_pid" 2>/dev/null
  tracker_pid=
}
refused=
if [ "$code" -ne 0 ] && [ "$signal" != LOST ] &&
  { [ -n "$asked" ] || [ -n "$unfit" ] || { [ -z "$signal" ] && killed; } || interrupted; }; then
  refused=$(refusal)
  if [ -z "$refused" ]; then
    record_end ', "requeued": true' # before requeueing, since Slurm then ends this script
    report_end
    close
    requeue && leave_out && exit "$code"
    refused=requeue-failed
    ! superseded || refused=$(refusal)
    [ -n "$asked" ] || signal=LOST # perhaps with its node, and Slurm has already started the job again
  fi
  echo "clusterctl: not started again: $refused"
fi
record_end "${refused:+, \"refused\": \"$refused\"}"
report_end
close
exit "$code"

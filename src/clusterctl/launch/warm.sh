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


# Only in warm runs (launcher/submission/warm.sh of clusterctl). An srun inside a step takes its shape from that step's SLURM_*
# variables: all are unset except those that identify the job.
cctl_job=$SLURM_JOB_ID cctl_conf=$SLURM_CONF
unset "${!SLURM_@}" "${!SRUN_@}" "${!SBATCH_@}"
SLURM_JOB_NODELIST=$cctl_node_list # not exported: srun would take it for a request
export SLURM_JOB_ID=$cctl_job
[ -z "$cctl_conf" ] || export SLURM_CONF=$cctl_conf

# Cancels this run but not its allocation: the ranks get TERM from outside, and this script URG, which srun and other
# programs ignore. Processes that remain are killed.
trap 'cctl_signal=TERM' URG
cctl_stoppable() {
  [ -z "$cctl_signal" ] || return 143
  "$@" &
  local cctl_child=$! cctl_code cctl_waited=0
  wait "$cctl_child"
  cctl_code=$?
  while kill -0 "$cctl_child" 2>/dev/null; do # `wait` was interrupted by a signal
    sleep 1
    [ $((cctl_waited += 1)) -ne 30 ] || kill -TERM "$cctl_child"
  done
  if [ -n "$cctl_signal" ]; then # the code may be that of the interrupted `wait`, although the child has ended since
    wait "$cctl_child"
    cctl_code=$?
  fi
  return "$cctl_code"
}

# The image is unpacked once per node and allocation by the first run; others wait for it. All scripts of an allocation
# run on its first node, so the owner's PID shows whether it is still alive. Without the ready mark, a container of that
# name may be incomplete: pyxis would not notice.
cctl_imported() {
  local cctl_mark=$cctl_image_mark cctl_owner cctl_code
  until [ -e "$cctl_mark/ready" ]; do
    { mkdir -p "$cctl_mark.$$" && echo "$$" >"$cctl_mark.$$/owner"; } || return 73
    if mv -T "$cctl_mark.$$" "$cctl_mark" 2>/dev/null; then # atomic: a non-empty folder is not replaced
      cctl_stoppable srun "${cctl_clearing[@]}" && cctl_stoppable srun "${cctl_importing[@]}"
      cctl_code=$?
      [ "$cctl_code" -ne 0 ] || { touch "$cctl_mark/ready" && return 0; }
      rm "$cctl_mark/owner" # an empty folder can be replaced, and shows the holder that the nodes may need cleaning
      return "$cctl_code"
    fi
    rm -r "$cctl_mark.$$"
    cctl_owner=$(cat "$cctl_mark/owner" 2>/dev/null)
    [ -z "$cctl_owner" ] || kill -0 "$cctl_owner" 2>/dev/null || rm -r "$cctl_mark"
    [ -z "$cctl_signal" ] || return 143
    sleep 0.5
  done
}

cctl_in_allocation() { # the tasks' srun: waits for the image, and can be stopped
  [ "${#cctl_importing[@]}" -eq 0 ] || cctl_imported || return
  cctl_stoppable "$@"
}


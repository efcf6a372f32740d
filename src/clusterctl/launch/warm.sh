# What only a warm run has (launch/warm.sh of clusterctl). An srun inside a step takes that step's shape from SLURM_*:
# all of them go but what tells it the job.
job=$SLURM_JOB_ID conf=$SLURM_CONF
unset "${!SLURM_@}" "${!SRUN_@}" "${!SBATCH_@}"
SLURM_JOB_NODELIST=$node_list # not exported: srun would take it for a request
export SLURM_JOB_ID=$job
[ -z "$conf" ] || export SLURM_CONF=$conf

# To cancel this run and not its allocation: the ranks get TERM from outside, this script URG, which no srun and no
# program minds. What stays is ended.
trap 'signal=TERM' URG
stoppable() {
  [ -z "$signal" ] || return 143
  "$@" &
  local child=$! code waited=0
  wait "$child"
  code=$?
  while kill -0 "$child" 2>/dev/null; do # a signal came: it did not end
    sleep 1
    [ $((waited += 1)) -ne 30 ] || kill -TERM "$child"
    kill -0 "$child" 2>/dev/null || { wait "$child"; code=$?; }
  done
  return "$code"
}

# The image is unpacked once per node and allocation, by whichever run comes first; the others wait for it. All scripts
# of an allocation run on its first node: the number of the owner's process says whether it lives. Without a mark that
# says it is ready, a container of that name is part of one at most: pyxis would take it for the image.
imported() {
  local mark=$image_mark owner code
  until [ -e "$mark/ready" ]; do
    { mkdir -p "$mark.$$" && echo "$$" >"$mark.$$/owner"; } || return 73
    if mv -T "$mark.$$" "$mark" 2>/dev/null; then # whole, or not at all: a folder with content is not replaced
      stoppable srun "${clearing[@]}" && stoppable srun "${importing[@]}"
      code=$?
      [ "$code" -ne 0 ] || { touch "$mark/ready" && return 0; }
      rm "$mark/owner" # an empty folder is replaced, and tells the holder that something may be left on the nodes
      return "$code"
    fi
    rm -r "$mark.$$"
    owner=$(cat "$mark/owner" 2>/dev/null)
    [ -z "$owner" ] || kill -0 "$owner" 2>/dev/null || rm -r "$mark"
    [ -z "$signal" ] || return 143
    sleep 0.5
  done
}

in_allocation() { # the tasks' srun: run when the image is there, and stoppable
  [ "${#importing[@]}" -eq 0 ] || imported || return
  stoppable "$@"
}


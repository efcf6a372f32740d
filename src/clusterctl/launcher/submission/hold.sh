# Holds the nodes of an allocation (launcher/submission/hold.sh of clusterctl). `marks` is the folder that records imported images.
umask 077
mkdir -p "$marks"
# enroot's name for pyxis's --container-name=X is pyxis_X or pyxis_<job>_X.
close() {
  trap '' USR1 TERM
  kill "$!" # the sleep below
  # Keep only the job ID of the environment: the rest would change the step's shape.
  job=$SLURM_JOB_ID nodes=$SLURM_JOB_NUM_NODES conf=$SLURM_CONF
  unset "${!SLURM_@}"
  export SLURM_JOB_ID=$job
  [ -z "$conf" ] || export SLURM_CONF=$conf
  if compgen -G "$marks/clusterctl_*" >/dev/null; then
    # shellcheck disable=SC2016 # expanded on each node
    srun --overlap --job-name=close --nodes="$nodes" --ntasks="$nodes" --ntasks-per-node=1 --mem=0 --mpi=none \
      --input=none sh -c '
        command -v enroot >/dev/null || exit 0
        enroot list | grep "clusterctl_$0_" | while read -r name; do enroot remove --force "$name"; done' "$job"
  fi
  rm -rf "$marks" "$marks.log"
  exit 0
}
trap close USR1 TERM
touch "$marks/held" # ready to handle the closing signal
while :; do
  sleep infinity &
  wait $!
done

#!/bin/bash
#SBATCH --job-name=big
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --cpus-per-task=1
#SBATCH --time=01:00:00
#SBATCH --gpus-per-node=8
#SBATCH --signal=B:USR1@60
#SBATCH --no-requeue
#SBATCH --chdir=/runs/.warm
#SBATCH --output=/runs/.warm/%j.log
#SBATCH --open-mode=append
# sbatch passes on what the submitter's shell exports (launcher/submission/shell.sh of clusterctl): functions named like a command
# used below, and shell options, must not affect this script, nor may those of `setup`. `module` and the like stay:
# `setup` may need them. It may also define srun as a function.
cctl_plain_shell() {
  builtin set +aefkmuvxCET +o pipefail +o posix
  builtin unset -f : '[' break cat cd chmod command compgen continue cp declare echo env eval exec exit export grep kill \
    mapfile mkdir local mv od printf read return rm scontrol set sh shopt sinfo sleep sort stat tail timeout touch tr trap true type \
    umask unset wait wc
  shopt -u dotglob expand_aliases failglob nocasematch nullglob
  unset GLOBIGNORE IFS
}
cctl_plain_shell
unset -f srun
export -n SHELLOPTS BASHOPTS

# Whether nobody else can change these folders, or links to them. They are executed from: this is checked at submission
# and again here, where they are used.
cctl_only_ours() {
  local cctl_found cctl_line IFS=$'\n'
  cctl_found=$(LC_ALL=C stat -c '%u %A' -- "$@") || return
  for cctl_line in $cctl_found; do
    [[ $cctl_line == "$EUID l"* || $cctl_line == "$EUID d"????-??-* ]] || return
  done
}

marks=/runs/.warm/$SLURM_JOB_ID
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

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

# shell.sh

cctl_run=/runs/big-20260102-030405-abcd
cctl_ranks=32
cctl_restarts=0 # how often the queue may start it again
cctl_by= # requeue or successor; empty: as the site has it
cctl_ahead=0 # how many the submission queues, where jobs may queue none
cctl_cancels= # yes: Slurm cancels the jobs that it preempts; empty: ask it
cctl_most_fruitless=3 # restarts in a row on the same nodes
cctl_progress='' # files that show it, of a program of the user's own
cctl_environment=
cctl_dropped=()
cctl_exports=(
  PYTHONPATH=/runs/.code/0123/lib:/runs/big-20260102-030405-abcd/work
  CLUSTERCTL_INTERFACE=ib0
  NVIDIA_VISIBLE_DEVICES=all
  NVIDIA_DRIVER_CAPABILITIES=compute,utility
  NCCL_DEBUG=WARN
  'TRICKY=a'"'"'b "c" $HOME `id` \ 
 é'
)
cctl_python=/venv/bin/python # for tasks on the host
cctl_python_is_named=
cctl_setup='
module purge
export NCCL_SOCKET_IFNAME=ib0' # the lines of the cluster file and of the job
cctl_srun=(
  srun
  --overlap
  --mem=0
  --ntasks-per-node=8
  --kill-on-bad-exit=1
  --cpus-per-task=14
  --mpi=none
  --unbuffered
  --input=none
  --cpu-bind=none
  --gpu-bind=none
  --chdir=/runs/big-20260102-030405-abcd/work
)
cctl_task=(
  bash -c 'while [ "$1" != -- ]; do
  ! ((SLURM_NODEID >= $1 && SLURM_NODEID <= $2 && SLURM_LOCALID >= $3 && SLURM_LOCALID <= $4)) || exec "${@:6:$5}"
  shift "$((5 + $5))"
done
shift; exec "$@"' roles
  0 1 0 0 25
  bash -c 'job=$SLURM_JOB_ID places=() count=$1
for name in ${!SLURM_@}; do
  case $name in
    SLURM_CONF | *JWT* | *TOKEN* | *SECRET* | *PASSW* | *CREDENTIAL* | *KEY*) ;;
    *) places+=("$name=${!name}") && unset "$name" ;;
  esac
done
exec srun --jobid="$job" --nodelist="$SLURMD_NODENAME" --nodes=1 --ntasks=1 --mpi=none --input=none --unbuffered \
  --quiet "${@:2:count}" sh -c "$0" /clusterctl-image "${places[@]}" -- "${@:count + 2}"' '[ -e "$0" ] || {
  echo "clusterctl[launch]: not in its image: pyxis is not active on node $SLURMD_NODENAME" >&2; exit 66; }
while [ "$1" != -- ]; do export "$1"; shift; done
shift; trap "" USR2; env --block-signal=USR2 true 2>/dev/null && set -- env --block-signal=USR2 "$@"; exec "$@"' 13
  --overlap
  --mem=0
  --cpu-bind=none
  --kill-on-bad-exit=0
  --wait=0
  '--container-image=/images/it'"'"'s.sqsh'
  --container-mounts=/runs:/runs,/runs:/clusterctl-image:ro,/scratch:/scratch
  --container-workdir=/runs/big-20260102-030405-abcd/work
  --container-readonly
  --no-container-mount-home
  --no-container-remap-root
  --no-container-entrypoint
  --container-env=CLUSTERCTL_ATTEMPT,CLUSTERCTL_INTERFACE,CLUSTERCTL_RUN_DIR,CLUSTERCTL_STARTS,CUDA_VISIBLE_DEVICES,NCCL_DEBUG,NCCL_SOCKET_IFNAME,NVIDIA_DRIVER_CAPABILITIES,NVIDIA_VISIBLE_DEVICES,PYTHONPATH,TRICKY sh -c 'p=$(command -v "$0") && [ "$(command -v python3)" != "${p%/*}/python3" ] && PATH=${p%/*}:$PATH; exec "$0" "$@"' /opt/venv/bin/python -u /runs/.code/0123/lib/clusterctl/shared/node/__main__.py /runs/big-20260102-030405-abcd
  --
  /venv/bin/python -u /runs/.code/0123/lib/clusterctl/shared/node/__main__.py /runs/big-20260102-030405-abcd
)
cctl_standby=()
cctl_in_image= # what only a task in its image sees
cctl_node_check=()
cctl_node_setup=()
cctl_staging=()
cctl_opening=(
  sh -c 'command -v enroot >/dev/null || exit 0
for name in $(enroot list | grep -Ex "pyxis_($SLURM_JOB_ID)?$0"); do enroot remove --force "$name" || exit; done' '[.][0-9]+'
)
cctl_closing=()
cctl_ending=(
  /venv/bin/python -I -S /runs/.code/0123/lib/clusterctl/shared/node/leftovers.py
)
cctl_notifier=()
cctl_tracker=()

# work.sh

# setup.sh

# successor.sh

# leave_out.sh

# batch.sh

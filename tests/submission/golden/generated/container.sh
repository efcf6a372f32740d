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
cctl_dropped=(
  PYTHONPATH
)
cctl_exports=(
  OMP_NUM_THREADS=14
  PYTHONPATH=/runs/.code/0123/lib:/runs/big-20260102-030405-abcd/work
  CLUSTERCTL_INTERFACE=ib0
  NVIDIA_VISIBLE_DEVICES=all
  NVIDIA_DRIVER_CAPABILITIES=compute,utility
  NCCL_DEBUG=WARN
  'TRICKY=a'"'"'b "c" $HOME `id` \ 
 é'
)
cctl_python= # for tasks on the host
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
  --gpu-bind=none
  '--container-image=nvcr.io#nvidia/pyg:24.07-py3'
  --container-mounts=/runs:/runs,/runs:/clusterctl-image:ro,/scratch:/scratch
  --container-workdir=/runs/big-20260102-030405-abcd/work
  --container-readonly
  --no-container-mount-home
  --no-container-remap-root
  --no-container-entrypoint
  --container-env=CLUSTERCTL_ATTEMPT,CLUSTERCTL_INTERFACE,CLUSTERCTL_RUN_DIR,CLUSTERCTL_STARTS,CUDA_VISIBLE_DEVICES,NCCL_DEBUG,NCCL_SOCKET_IFNAME,NVIDIA_DRIVER_CAPABILITIES,NVIDIA_VISIBLE_DEVICES,OMP_NUM_THREADS,PYTHONPATH,TRICKY
  --chdir=/runs/big-20260102-030405-abcd/work
)
cctl_task=(
  sh -c 'p=$(command -v "$0") && [ "$(command -v python3)" != "${p%/*}/python3" ] && PATH=${p%/*}:$PATH; exec "$0" "$@"' /opt/venv/bin/python -u /runs/.code/0123/lib/clusterctl/shared/node/__main__.py /runs/big-20260102-030405-abcd
)
cctl_standby=()
cctl_in_image=/clusterctl-image # what only a task in its image sees
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

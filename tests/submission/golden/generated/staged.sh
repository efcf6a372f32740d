#!/bin/bash
#SBATCH --job-name=big
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=8
#SBATCH --cpus-per-task=1
#SBATCH --time=01:00:00
#SBATCH --gres=gpu:8
#SBATCH --signal=USR2@300
#SBATCH --requeue
#SBATCH --chdir=/runs/big-20260102-030405-abcd
#SBATCH --output=/runs/big-20260102-030405-abcd/slurm.log
#SBATCH --open-mode=append
# Rendered by clusterctl 0.0.0; the run directory is the record of what happened.

# shell.sh

cctl_run=/runs/big-20260102-030405-abcd
cctl_ranks=32
cctl_restarts=20 # how often the queue may start it again
cctl_by= # requeue or successor; empty: as the site has it
cctl_ahead=0 # how many the submission queues, where jobs may queue none
cctl_cancels= # yes: Slurm cancels the jobs that it preempts; empty: ask it
cctl_most_fruitless=3 # restarts in a row on the same nodes
cctl_progress='' # files that show it, of a program of the user's own
cctl_environment=
cctl_dropped=()
cctl_exports=(
  OMP_NUM_THREADS=1
  PYTHONPATH=/runs/.code/0123/lib:/runs/big-20260102-030405-abcd/work
  CLUSTERCTL_INTERFACE=ib0
  NCCL_DEBUG=WARN
  'TRICKY=a'"'"'b "c" $HOME `id` \ 
 é'
)
cctl_python=/venv/bin/python # for tasks on the host
cctl_python_is_named=
cctl_setup='
module purge
export NCCL_SOCKET_IFNAME=ib0
source '"'"'/shared/my env/bin/activate'"'"'
source "/shared/conda/bin/activate" third
module load cuda' # the lines of the cluster file and of the job
cctl_srun=(
  srun
  --overlap
  --mem=0
  --ntasks-per-node=8
  --kill-on-bad-exit=1
  --cpus-per-task=1
  --mpi=none
  --unbuffered
  --input=none
  --gpu-bind=none
  --chdir=/runs/big-20260102-030405-abcd/work
)
cctl_task=(
  sh -c 'eval "s=\"$0\".$CLUSTERCTL_ATTEMPT@$SLURMD_NODENAME"; [ ! -L "$s" ] && [ -O "$s" ] && [ -d "$s/imports" ] && PYTHONPATH=$s/imports:$PYTHONPATH; exec "$@"' /local/scratch/clusterctl-stage-big-20260102-030405-abcd /venv/bin/python -u /runs/.code/0123/lib/clusterctl/shared/node/__main__.py /runs/big-20260102-030405-abcd
)
cctl_standby=()
cctl_in_image= # what only a task in its image sees
cctl_node_check=()
cctl_node_setup=()
cctl_staging=(
  /venv/bin/python -I -S /runs/.code/0123/lib/clusterctl/shared/node/staging.py /local/scratch/clusterctl-stage-big-20260102-030405-abcd
  /runs/.code/0123/lib /runs/.code/0123/lib.tar
  /runs/big-20260102-030405-abcd/work /runs/.code/0123/project.tar
  /venv /runs/big-20260102-030405-abcd/environments/0.tar
  '/shared/my env' /runs/big-20260102-030405-abcd/environments/1.tar
  /shared/conda/envs/third /runs/big-20260102-030405-abcd/environments/2.tar
)
cctl_opening=()
cctl_closing=(
  sh -c 'eval "s=\"$0\".$CLUSTERCTL_ATTEMPT@$SLURMD_NODENAME"; rm -rf "$s"' /local/scratch/clusterctl-stage-big-20260102-030405-abcd
)
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

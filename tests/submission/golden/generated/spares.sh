#!/bin/bash
#SBATCH --job-name=cora
#SBATCH --nodes=3
#SBATCH --ntasks-per-node=2
#SBATCH --cpus-per-task=1
#SBATCH --time=00:20:00
#SBATCH --signal=USR2@120
#SBATCH --requeue
#SBATCH --no-kill
#SBATCH --chdir=/runs/cora-20260102-030405-abcd
#SBATCH --output=/runs/cora-20260102-030405-abcd/slurm.log
#SBATCH --open-mode=append
# Rendered by clusterctl 0.0.0; the run directory is the record of what happened.

# shell.sh

cctl_run=/runs/cora-20260102-030405-abcd
cctl_ranks=4
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
  MALLOC_MMAP_MAX_=0
  MALLOC_TRIM_THRESHOLD_=100000000000
  GLIBC_TUNABLES=glibc.malloc.hugetlb=1:glibc.malloc.tcache_count=0:glibc.malloc.mxfast=0
  ONEDNN_PRIMITIVE_CACHE_CAPACITY=128
  GOMP_SPINCOUNT=5000
  PYTHONPATH=/runs/.code/0123/lib
)
cctl_python=/venv/bin/python # for tasks on the host
cctl_python_is_named=
cctl_setup='' # the lines of the cluster file and of the job
cctl_srun=(
  cctl_on_chosen_nodes srun
  --overlap
  --mem=0
  --ntasks-per-node=2
  --kill-on-bad-exit=1
  --cpus-per-task=1
  --mpi=none
  --unbuffered
  --input=none
  --chdir=/runs/cora-20260102-030405-abcd/work
)
cctl_task=(
  /venv/bin/python -u /runs/.code/0123/lib/clusterctl/shared/node/__main__.py /runs/cora-20260102-030405-abcd
)
cctl_standby=()
cctl_in_image= # what only a task in its image sees
cctl_node_check=()
cctl_node_setup=()
cctl_staging=()
cctl_opening=()
cctl_closing=()
cctl_ending=(
  /venv/bin/python -I -S /runs/.code/0123/lib/clusterctl/shared/node/leftovers.py
)
cctl_notifier=()
cctl_tracker=()

cctl_wanted_nodes=2 # of those that the job holds
cctl_least_nodes=1
cctl_tasks_on_each=2
cctl_guard=(
  --overlap
  --mem=0
  --cpu-bind=none
  --kill-on-bad-exit=0
  --wait=0
  --no-kill /venv/bin/python -I -S /runs/.code/0123/lib/clusterctl/shared/node/guard.py
)

# spares.sh

# work.sh

# setup.sh

# successor.sh

# leave_out.sh

# batch.sh

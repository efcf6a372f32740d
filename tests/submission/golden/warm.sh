#!/bin/bash
# Rendered by clusterctl 0.0.0; the run directory is the record of what happened.

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

cctl_run=/runs/big-20260102-030405-abcd
cctl_ranks=16
cctl_restarts=0 # how often the queue may start it again
cctl_by= # requeue or successor; empty: as the site has it
cctl_ahead=0 # how many the submission queues, where jobs may queue none
cctl_cancels= # yes: Slurm cancels the jobs that it preempts; empty: ask it
cctl_most_fruitless= # restarts in a row on the same nodes
cctl_progress='' # files that show it, of a program of the user's own
cctl_environment=
cctl_dropped=(
  PYTHONPATH
)
cctl_exports=(
  OMP_NUM_THREADS=1
  PYTHONPATH=/runs/.code/0123/lib:/runs/big-20260102-030405-abcd/work
  NVIDIA_VISIBLE_DEVICES=all
  NVIDIA_DRIVER_CAPABILITIES=compute,utility
)
cctl_python= # for tasks on the host
cctl_python_is_named=
cctl_setup='
module purge' # the lines of the cluster file and of the job
cctl_srun=(
  cctl_in_allocation srun
  --job-name=big-20260102-030405-abcd.ranks
  --nodes=2
  --ntasks=16
  --time=01:00:00
  --gpus-per-node=8
  --signal=USR2@300
  --overlap
  --mem=0
  --ntasks-per-node=8
  --kill-on-bad-exit=1
  --cpus-per-task=1
  --mpi=none
  --unbuffered
  --input=none
  --container-name=clusterctl_77_102e8a30
  --container-mounts=/runs:/runs,/runs:/clusterctl-image:ro
  --container-workdir=/runs/big-20260102-030405-abcd/work
  --container-readonly
  --no-container-mount-home
  --no-container-remap-root
  --no-container-entrypoint
  --container-env=CLUSTERCTL_ATTEMPT,CLUSTERCTL_RUN_DIR,CLUSTERCTL_STARTS,CUDA_VISIBLE_DEVICES,NVIDIA_DRIVER_CAPABILITIES,NVIDIA_VISIBLE_DEVICES,OMP_NUM_THREADS,PYTHONPATH
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
cctl_opening=()
cctl_closing=()
cctl_ending=(
  /venv/bin/python -I -S /runs/.code/0123/lib/clusterctl/shared/node/leftovers.py
)
cctl_notifier=()
cctl_tracker=()

cctl_node_list='node[1-4]' # of allocation 77: this is a step of it
cctl_image_mark=/runs/.warm/77/clusterctl_77_102e8a30
cctl_on_each=(
  --overlap
  --job-name=big-20260102-030405-abcd.ending
  --nodes=4
  --ntasks=4
  --ntasks-per-node=1
  --mem=0
  --mpi=none
  --input=none
)
cctl_clearing=(
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
cctl_importing=(
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


# Each run has its own working directory (launcher/submission/work.sh of clusterctl): a copy of its code, created atomically before
# the first start. Hard links in the snapshot become separate files.
cctl_no_work= # a field of host.json if it is missing
cctl_make_work() {
  [ ! -d "$cctl_run/work" ] || return 0
  cctl_drop_copies "$cctl_run"/.work.* # left by an attempt that was killed
  local cctl_copy=$cctl_run/.work.$cctl_number cctl_problem
  cctl_problem=$({ cp -RP --preserve=mode,timestamps --reflink=auto "$cctl_run/code/project" "$cctl_copy" &&
    chmod -R u+w "$cctl_copy" &&
    { mv -T "$cctl_copy" "$cctl_run/work" || cctl_await [ -d "$cctl_run/work" ]; }; } 2>&1) && return
  echo "clusterctl: cannot create $cctl_run/work: ${cctl_problem%%$'\n'*}"
  [ -n "$cctl_signal" ] || cctl_no_work=', "no_work": true'
  return 73
}
cctl_drop_copies() { # incomplete ones
  local cctl_copy
  for cctl_copy; do
    [ ! -d "$cctl_copy" ] || { chmod -R u+w "$cctl_copy" && rm -rf "$cctl_copy"; }
  done
}

# What happens in the lines of `setup` (launcher/submission/setup.sh of clusterctl). A line that fails is recorded with its number and
# code. It ends the attempt if nothing after it can be right: its file, environment or module is missing. `exit` and
# `set -e` end it as well (docs/decisions/programs-and-their-environment.md).
cctl_flaws= # the first lines that failed, in JSON
cctl_line=0 cctl_doing='' # the command that runs
cctl_earlier_line=0 cctl_earlier='' # the one before
cctl_complete=
cctl_last_line=${cctl_setup//[!$'\n']/}
cctl_last_line=${#cctl_last_line}
cctl_first=0 # the line of the script with the `eval`, from which LINENO counts
cctl_watch_setup() {
  trap 'cctl_ended_in_setup "$?"' EXIT
  trap 'cctl_has_failed "$?" "${#BASH_SOURCE[@]}" "$BASH_COMMAND"' ERR
  trap 'cctl_begins "$?" "${#BASH_SOURCE[@]}" "$((LINENO - cctl_first))" "$BASH_COMMAND"' DEBUG
}
# The lines may have redefined any command, and set any option: this uses the shell's own.
cctl_begins() { # code of the last command; depth, line and text of the next one
  [[ $2 -eq 1 && $3 -gt 0 ]] || builtin return 0 # within a function or a file, or within this script
  # If commands are joined by &&, bash tells of a failure only for the last one.
  if [[ $1 -ne 0 && $3 -ne $cctl_line ]] && cctl_is_vital "$1" "$cctl_doing"; then
    cctl_find_line
    [[ $REPLY != *'&&'* || $REPLY == *'||'* || $REPLY =~ ^[[:space:]]*(if|elif|while|until|!)[[:space:]] ]] ||
      { cctl_note_flaw "$1" && builtin exit "$1"; }
  fi
  cctl_earlier_line=$cctl_line cctl_earlier=$cctl_doing cctl_line=$3 cctl_doing=$4
}
cctl_has_failed() { # code, depth, and the last command, which is one of a function if the line calls a function
  [[ $2 -eq 1 ]] || builtin return 0
  # bash runs the DEBUG trap for the ERR trap, too.
  [[ $cctl_doing != "$3" || $cctl_line -ne $cctl_earlier_line ]] || cctl_doing=$cctl_earlier
  if cctl_is_vital "$1" "$cctl_doing"; then cctl_note_flaw "$1" && builtin exit "$1"; fi
  # A file that exists, such as ~/.bashrc, returns the code of its last command.
  [[ $1 -eq 1 && ($cctl_doing == "source "* || $cctl_doing == ". "*) ]] || cctl_note_flaw "$1"
}
cctl_note_flaw() { # code
  [[ $cctl_line -eq 0 || $cctl_line -gt $cctl_last_line || $cctl_flaws == *"\"line\": $cctl_line,"* ||
    ${#cctl_flaws} -gt 120 ]] || cctl_flaws+="${cctl_flaws:+, }{\"line\": $cctl_line, \"code\": $1}"
}
cctl_is_vital() { # code, command: whether this failure makes everything after it wrong
  case $2 in
    "conda activate "* | "mamba activate "* | "micromamba activate "*) ;;
    "module load "* | "module add "* | "module swap "* | "module switch "* | "module restore "*) ;;
    "ml load "* | "ml add "* | "ml swap "*) ;;
    "conda "* | "mamba "* | "micromamba "* | "module "* | "ml "*) [[ $1 -eq 127 ]] ;;
    "source "* | ". "*) [[ $1 -eq 1 && $2 != *[\`\(]* ]] && cctl_is_missing "${2#* }" ;; # expanding it runs nothing
    *) builtin return 1 ;;
  esac
}
cctl_is_missing() { # the words of a `source`: whether bash finds no such file
  cctl_words=()
  builtin eval "cctl_words=(${1%%[<>]*})" 2>/dev/null
  if [[ -z ${cctl_words[0]} || -e ${cctl_words[0]} ]]; then builtin return 1; fi
  if [[ ${cctl_words[0]} == */* ]]; then builtin return 0; fi
  builtin local IFS=:
  for cctl_place in $PATH; do
    if [[ -e $cctl_place/${cctl_words[0]} ]]; then builtin return 1; fi
  done
}
cctl_find_line() { # the text of the current line, in REPLY
  REPLY=$cctl_setup
  for ((cctl_count = 0; cctl_count < cctl_line; cctl_count++)); do REPLY=${REPLY#*$'\n'}; done
  REPLY=${REPLY%%$'\n'*}
}
cctl_setup_is_over() {
  trap - DEBUG ERR
  # A syntax error, such as a quote that is never closed, hides the rest.
  [ -n "$cctl_complete" ] || { cctl_line=0 && cctl_ended_in_setup 2; }
  [[ $(trap -p EXIT) != *cctl_* ]] || trap - EXIT
}
cctl_ended_in_setup() { # exit code
  cctl_plain_shell
  trap - DEBUG ERR EXIT
  cctl_code=$1
  [ "$cctl_code" -ne 0 ] || cctl_code=1 # the run has not finished
  cctl_moment_of cctl_end
  cctl_record host.json \
    ", \"end\": $cctl_end, \"exit_code\": $cctl_code, \"signal\": \"$cctl_signal\", \"setup_ended\": $cctl_line"
  [ "${#cctl_notifier[@]}" -eq 0 ] || timeout -k 1 9 "${cctl_notifier[@]}" </dev/null || true
  cctl_drop_successor
  exit "$cctl_code"
}

# Where the site does not requeue jobs, a run goes on in a successor (launcher/submission/successor.sh of clusterctl): a job
# with this same script, which waits in the queue for the end of this one, and leaves at once if the run does not need it.
declare +x cctl_succeeds=${cctl_succeeds:-} # the jobs that this one waited for
declare +x cctl_starts=${cctl_starts:-0}    # how often the queue has started the run again before this job
# scontrol takes the job ID of an array's last element for the whole array.
cctl_own_job=$SLURM_JOB_ID
[ -z "$SLURM_ARRAY_JOB_ID" ] || cctl_own_job=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID

# The variables that Slurm gave this script, and no others, for a program that is executed next. Those whose names are no
# names to a shell, such as functions, are put into cctl_words, for env. Values are not: they may be secret, and everybody
# can read a command line.
cctl_as_begun() {
  local cctl_all cctl_one
  mapfile -d '' -t cctl_all <"/proc/$$/environ" && [ "${#cctl_all[@]}" -gt 0 ] || return
  for cctl_one in $(compgen -e); do export -n "${cctl_one?}"; done
  while read -r _ _ cctl_one; do export -nf "${cctl_one?}"; done < <(declare -Fx)
  cctl_words=()
  for cctl_one in "${cctl_all[@]}"; do
    case ${cctl_one%%=*} in
      cctl_*) ;; # as they are by now
      [0-9]* | *[!A-Za-z0-9_]*) cctl_words+=("$cctl_one") ;;
      *) export "${cctl_one?}" ;;
    esac
  done
} 2>/dev/null # bash keeps some for itself, such as UID

# The record is of this job, and only then of use: {"of": this job, "job_id": its successor, or "problem": why it has
# none}. If the submission has queued several, "jobs" are all jobs of the run in their order, such as "12 13 14".
cctl_successor=
cctl_later=() # it, and those that come after it
cctl_read_successor() {
  local cctl_text=
  cctl_later=()
  { read -r cctl_text <"$cctl_run/successor.json"; } 2>/dev/null
  if [[ $cctl_text =~ \"jobs\":\ \"([0-9]+\ )*$cctl_own_job\ ([0-9][0-9\ ]*)\" ]]; then
    read -ra cctl_later <<<"${BASH_REMATCH[2]}"
  elif [[ $cctl_text == *"\"of\": \"$cctl_own_job\""* && $cctl_text =~ \"job_id\":\ \"([0-9]+)\" ]]; then
    cctl_later=("${BASH_REMATCH[1]}")
  fi
  cctl_successor=${cctl_later[0]-}
  [ -n "$cctl_successor" ]
}
cctl_note_successor() { # JSON fields
  printf '{"of": "%s", %s}\n' "$cctl_own_job" "$1" >"$cctl_run/.successor.json" &&
    mv -T "$cctl_run/.successor.json" "$cctl_run/successor.json"
}
cctl_in_json() { # the first line of a text, shortened
  local LC_ALL=C cctl_line=${1%%$'\n'*}
  cctl_line=${cctl_line//[^ -~]/ } && cctl_line=${cctl_line//[\"\\]/\'}
  echo "${cctl_line:0:150}"
}
cctl_starts_so_far() { echo $((cctl_starts + ${SLURM_RESTART_COUNT:-0})); } # after the first
cctl_starts_left() { [ "$(cctl_starts_so_far)" -lt "$cctl_restarts" ]; }
cctl_ask_sbatch() ( # with the variables that this job was submitted with; those of a job would change the next one's
  cd "$cctl_run" && cctl_as_begun || exit
  for cctl_one in $(compgen -e); do
    case $cctl_one in
      SLURM_CONF) ;;
      SLURM_* | SLURMD_* | SBATCH_* | CLUSTERCTL_STANDBY) export -n "${cctl_one?}" ;;
      CUDA_VISIBLE_DEVICES | ROCR_VISIBLE_DEVICES | GPU_DEVICE_ORDINAL | ZE_AFFINITY_MASK) export -n "${cctl_one?}" ;;
    esac
  done
  export cctl_succeeds=$SLURM_JOB_ID cctl_starts=$(($(cctl_starts_so_far) + 1))
  trap '' TERM
  cctl_flags=(--parsable --dependency="afterany:$cctl_own_job")
  cctl_flags+=("${cctl_more[@]}")
  ! grep -q '^#SBATCH --begin=' script.sh || cctl_flags+=(--begin=now) # the script has the time of the first start
  exec env "${cctl_words[@]}" timeout -k 5 90 sbatch "${cctl_flags[@]}" script.sh
)
cctl_more=()   # sbatch's options for what the run was short of (grow.sh), and the record of that
cctl_grown=''
cctl_queue_successor() {
  local cctl_answer
  cctl_starts_left && [ ! -e "$cctl_run/cancel.json" ] || return
  cctl_answer=$(cctl_ask_sbatch 2>&1)
  if [[ ${cctl_answer##*$'\n'} =~ ^([0-9]+)(;.*)?$ ]]; then
    cctl_successor=${BASH_REMATCH[1]} cctl_later=("${BASH_REMATCH[1]}")
    cctl_with_retries cctl_note_successor "\"job_id\": \"$cctl_successor\""
    cctl_move_waiting "$cctl_own_job" "$cctl_successor"
  else
    cctl_answer=$(cctl_in_json "${cctl_answer:-no answer from sbatch}")
    cctl_with_retries cctl_note_successor "\"problem\": \"$cctl_answer\""
    cctl_problem=", \"requeue_problem\": \"$cctl_answer\""
    echo "clusterctl: no successor: $cctl_answer"
    return 1
  fi
}
# What waits for the end of this run waits for its last job: `from`, `to`.
cctl_move_waiting() {
  local cctl_id cctl_rest cctl_one cctl_new cctl_moved
  while read -r cctl_id cctl_rest; do
    cctl_new='' cctl_moved=''
    while [ -n "$cctl_rest" ] && [[ $cctl_rest =~ ^([^,?]*)([,?]?)(.*)$ ]]; do
      cctl_one=${BASH_REMATCH[1]%%(*} cctl_rest=${BASH_REMATCH[3]}
      case ${cctl_one%_\*} in
        "afterok:$1" | "afterany:$1" | "afternotok:$1") cctl_one=${cctl_one%%:*}:$2 cctl_moved=yes ;;
      esac
      cctl_new+=${cctl_one%_\*}${BASH_REMATCH[2]}
    done
    [ -z "$cctl_moved" ] || [[ " ${cctl_later[*]} " == *" $cctl_id "* ]] ||
      cctl_ask 30 scontrol update "JobId=$cctl_id" "Dependency=$cctl_new" </dev/null
  done < <(cctl_ask 30 squeue --me --noheader --states=PENDING --format='%i %E')
}
cctl_ask() (trap '' TERM; timeout -s KILL "$@" 2>/dev/null) # seconds, command: Slurm, which may be silent
# As soon as the job starts: it may end without a warning. In the background: the ranks need not wait for that.
cctl_arranging=
cctl_arrange_successor() {
  [ "$cctl_restarts" -gt 0 ] && [ "$cctl_by" != requeue ] && [ "$cctl_agains" -eq 0 ] && [ "$cctl_ahead" -eq 0 ] &&
    ! cctl_read_successor && ! declare -F cctl_in_allocation >/dev/null || return 0
  (trap '' TERM; { [ -n "$cctl_by$cctl_cancels" ] || cctl_site_ends_jobs; } && cctl_queue_successor) &
  cctl_arranging=$!
}
cctl_site_ends_jobs() { # rather than to requeue them, as Slurm shows this job, and its partition or QOS
  local cctl_job cctl_config cctl_modes
  cctl_job=$(cctl_ask 30 scontrol show job "$cctl_own_job")
  [[ $cctl_job != *" Requeue=0"* ]] || return 0
  cctl_config=$'\n'$(cctl_ask 30 scontrol show config)
  if [[ $cctl_config =~ $'\n'PreemptType[[:space:]]*=[[:space:]]*preempt/qos ]]; then # partitions' modes do not count then
    [[ ! $cctl_job =~ [[:space:]]QOS=([^[:space:]]+) ]] ||
      cctl_modes=$(cctl_ask 30 sacctmgr -n -P show qos where "name=${BASH_REMATCH[1]}" "format=PreemptMode")
    case ${cctl_modes,,} in
      *cancel*) return 0 ;;
      '' | cluster*) [[ $cctl_config =~ $'\n'PreemptMode[[:space:]]*=[[:space:]]*[A-Z,]*CANCEL ]] ;;
      *) return 1 ;;
    esac
    return
  fi
  [[ $cctl_job =~ [[:space:]]Partition=([^[:space:]]+) ]] &&
    cctl_modes=$(cctl_ask 30 scontrol show partition "${BASH_REMATCH[1]}") &&
    [[ $cctl_modes =~ [[:space:]]PreemptMode=[A-Z,]*CANCEL ]]
}
cctl_preempted() { # it is being ended for another job, and will not be requeued
  [ "$cctl_signal" = TERM ] && [ "$cctl_by" != requeue ] && cctl_read_successor && cctl_job_yields
}
cctl_job_yields() { [[ $(cctl_ask 5 scontrol show job "$cctl_own_job") =~ [[:space:]]PreemptTime=[0-9] ]]; }
cctl_has_successor() { # the user may have cancelled it
  cctl_await_successor
  cctl_read_successor &&
    [[ $(cctl_ask 30 scontrol show job "$cctl_successor") == *JobState=PENDING* ]] ||
    { cctl_successor='' cctl_later=() && return 1; }
}
cctl_next_jobs() { # the jobs in which the run can go on
  local IFS=,
  echo "${cctl_later[*]:-$cctl_own_job}"
}
cctl_await_successor() {
  while [ -n "$cctl_arranging" ] && kill -0 "$cctl_arranging" 2>/dev/null; do wait "$cctl_arranging"; done
}
cctl_go_on() { # in the queue, in the one or the other way
  if [ -n "$cctl_short" ]; then
    cctl_go_on_with_more || return
  elif cctl_has_successor; then
    cctl_move_waiting "$cctl_own_job" "${cctl_later[-1]}" # those that were queued after it
  else
    if [ "$cctl_by" != successor ]; then
      cctl_requeue && return
      [ -z "$cctl_by" ] && ! cctl_superseded && [ ! -e "$cctl_run/cancel.json" ] || return
    fi
    cctl_queue_patiently || return
  fi
  cctl_problem=''
}
cctl_queue_patiently() { # Slurm may be unreachable for minutes
  local cctl_deadline=$((SECONDS + 600))
  until cctl_queue_successor; do
    case $cctl_problem in
      *"nable to contact"* | *"imed out"* | *"onnection refused"* | *"emporarily"*) ;;
      *) return 1 ;;
    esac
    [ "$SECONDS" -lt "$cctl_deadline" ] && [ ! -e "$cctl_run/cancel.json" ] || return
    sleep 10
  done
}
cctl_drop_successor() { # the run has ended
  cctl_await_successor
  cctl_read_successor || return 0
  cctl_move_waiting "${cctl_later[-1]}" "$cctl_own_job"
  cctl_ask 30 scancel "${cctl_later[@]}"
}

# Whether the run goes on in this job, after those that it waited for. If not, the code with which this job leaves: jobs
# that wait for the run's success wait for that of this job by now.
cctl_unneeded=1
cctl_is_needed() {
  local cctl_text='' cctl_words='' cctl_before=''
  [ ! -e "$cctl_run/cancel.json" ] && [ -n "$cctl_last" ] || return
  cctl_await cctl_last_has_ended
  { read -r cctl_text <"$cctl_run/attempts/$cctl_last/host.json"; } 2>/dev/null
  [[ ! $cctl_text =~ \"job_id\":\ \"([^\"]*)\" ]] || cctl_before=${BASH_REMATCH[1]}
  [ "$cctl_before" != "$SLURM_JOB_ID" ] || return 0                  # Slurm has requeued this job
  [[ " $cctl_succeeds " == *" ${cctl_before:-none} "* ]] || return 1 # the run has been submitted again
  [ "$cctl_ahead" -eq 0 ] || cctl_starts=$(cctl_starts_of_others | sort -u | wc -l)
  case $cctl_text in
    *'"requeued": true'* | *'"requeuing": true'* | *'"signal": "LOST"'*) return ;;
    *'"signal": "TERM"'*) ;;
    *'"exit_code": 0,'*) cctl_unneeded=0 && return 1 ;;
    *'"exit_code": '*) return 1 ;;
  esac
  # It was ended from outside, or lost with its node. In the log, Slurm has the reason, unless the node was lost.
  cctl_words=$(grep -aE "^slurmstepd[^ :]*: error: \*\*\* JOB $cctl_before ON .* CANCELLED AT " "$cctl_run/slurm.log" | tail -n 1)
  case $cctl_words in
    *"DUE TO PREEMPTION"* | *"DUE TO NODE FAILURE"*) ;;
    '') [[ $cctl_text != *'"signal": "TERM"'* ]] ;;
    *) return 1 ;;
  esac
}
cctl_starts_of_others() { # of the jobs before this one
  local cctl_one cctl_text
  for cctl_one in "$cctl_run"/attempts/*/host.json; do
    { read -r cctl_text <"$cctl_one"; } 2>/dev/null
    [[ $cctl_text =~ \"job_id\":\ \"([0-9]+)\",\ \"restart_count\":\ ([0-9]+) ]] &&
      [[ " $cctl_succeeds " == *" ${BASH_REMATCH[1]} "* ]] && echo "${BASH_REMATCH[0]}"
  done
}
cctl_last_has_ended() { grep -q '"exit_code": ' "$cctl_run/attempts/$cctl_last/host.json" 2>/dev/null; }

# Nodes that a run goes on without in the queue (launcher/submission/leave_out.sh of clusterctl): those that failed their
# check, those with a broken GPU, and one on which ranks are killed again and again.
cctl_excluded='' # JSON: the nodes that Slurm does not give to the next attempt
# Slurm accepts this only for a pending job, which it is once it has been requeued, while this script still runs.
cctl_leave_out() {
  [ -z "$cctl_unfit" ] ||
    (trap '' TERM; cctl_with_retries scontrol update "JobId=$(cctl_next_jobs)" "ExcNodeList=$cctl_unfit") ||
    echo "clusterctl: cannot exclude $cctl_unfit from the next start"
}
cctl_exclude() { # why, nodes: from the next start, beside those that are excluded by now
  local cctl_job cctl_node cctl_before=''
  cctl_job=$(cctl_ask 30 scontrol show job "$cctl_own_job")
  [ -n "$cctl_job$cctl_unfit" ] || { echo "clusterctl: cannot exclude ${*:2}: no answer from scontrol" && return; }
  [[ ! $cctl_job =~ [[:space:]]ExcNodeList=([^[:space:]]+) ]] || cctl_before=${BASH_REMATCH[1]}
  [ "$cctl_before" != "(null)" ] || cctl_before=''
  cctl_unfit=$cctl_before
  for cctl_node in "${@:2}"; do
    cctl_unfit+="${cctl_unfit:+,}$cctl_node"
    cctl_excluded+="${cctl_excluded:+, }{\"node\": \"$cctl_node\", \"why\": \"$1\"}"
  done
}

# If a rank is killed on the same node twice in a row at the same logged step, beyond which no attempt has got, that node may
# be broken, and the third start leaves it out. If a rank is killed at that step even then, another start does not help; nor
# if no node is to blame, after three or `restart.without_progress` kills.
cctl_blamed='' # the node
cctl_doomed='' # yes: ranks would only be killed once more
cctl_kills=''  # a JSON field: at which step a rank was killed, how often in a row, where, and the node that was then left out
cctl_count_kills() {
  local cctl_before='' cctl_step cctl_times=1 cctl_node='' cctl_without='' cctl_row
  [ -z "$cctl_signal$cctl_asked$cctl_short$cctl_defect$cctl_lost" ] && cctl_rank_killed || return 0
  cctl_step=$(cctl_last_step "$cctl_number")
  [ "$cctl_step" -ge 0 ] && [ "$cctl_step" -ge "$cctl_furthest" ] || return 0
  cctl_find_killer
  [ -z "$cctl_last" ] || { read -r cctl_before <"$cctl_run/attempts/$cctl_last/host.json"; } 2>/dev/null
  cctl_row='"kills": \{"step": '$cctl_step', "times": ([0-9]{1,9}), "node": "([^"]*)"(, "without": "[^"]*")?\}'
  case $cctl_before in # not if it was resumed by hand
    *'"restarting": true'* | *'"requeuing": true'* | *'"requeued": true'*)
      if [[ $cctl_before =~ $cctl_row ]]; then
        cctl_times=$((BASH_REMATCH[1] + 1)) cctl_without=${BASH_REMATCH[3]}
        [ -z "$cctl_node" ] || [ "$cctl_node" != "${BASH_REMATCH[2]}" ] || cctl_blamed=$cctl_node
      fi ;;
  esac
  cctl_without=${cctl_without%\"} cctl_without=${cctl_without##*\"}
  if [ -n "$cctl_without" ] && [[ $(cctl_names_of "$cctl_nodes") == *" $cctl_without "* ]]; then # Slurm was faster
    cctl_blamed=$cctl_without
  elif [ -n "$cctl_without" ]; then cctl_doomed=yes
  elif [ -z "$cctl_blamed" ] && [ "$cctl_times" -ge 3 ] && [ "$cctl_times" -ge "${cctl_most_fruitless:-0}" ]; then
    cctl_doomed=yes
  fi
  [ -z "$cctl_doomed" ] || cctl_blamed=''
  cctl_kills=", \"kills\": {\"step\": $cctl_step, \"times\": $cctl_times, \"node\": \"$cctl_node\""
  cctl_kills+="${cctl_doomed:+${cctl_without:+, \"without\": \"$cctl_without\"}}}"
}
# The node, from srun's first line about a task: those of the others follow. The task of a killed program exits with 137. If
# memory was short, another node would have no more.
cctl_find_killer() { # sets cctl_node
  local cctl_line
  ! grep -qsiE 'oom[-_ ]kill' "$cctl_attempt/host.log" || return 0
  while IFS= read -r cctl_line; do
    [[ $cctl_line =~ ^srun:\ error:\ ([^\ ]+):\ tasks?\ [0-9,-]+:\ (.*) ]] || continue
    case ${BASH_REMATCH[2]} in Killed* | *" exit code 137") cctl_node=${BASH_REMATCH[1]} ;; esac
    return 0
  done <"$cctl_attempt/host.log"
}
cctl_go_without_blamed() {
  cctl_kills="${cctl_kills%\}}, \"without\": \"$cctl_blamed\"}"
  cctl_blamed=''
}
# If all ranks have lost their connections, it is a node to blame that Slurm drains, or that does not answer it either.
cctl_find_failing() {
  local cctl_node cctl_state cctl_own
  [ -z "$cctl_signal$cctl_asked$cctl_lost" ] && cctl_cut_off || return
  cctl_own=$(cctl_names_of "$cctl_nodes")
  while read -r cctl_node cctl_state; do
    [[ $cctl_own == *" $cctl_node "* ]] || continue
    case $cctl_state in *drain* | *fail* | *down* | *not_responding*) cctl_blamed=$cctl_node && return ;; esac
  done < <(cctl_ask 30 sinfo --noheader --Node --Format=NodeList:100,StateComplete:100)
  return 1
}
# Whether the run goes to the queue without the blamed node. Where all nodes are needed, it might wait there for good.
cctl_exclude_blamed() {
  local cctl_why=killed cctl_words
  cctl_words='a rank was killed there at the same step again'
  [ -n "$cctl_blamed" ] || { cctl_find_failing && cctl_why=drained cctl_words='the ranks have lost their connections'; } &&
    cctl_starts_left && ! declare -F cctl_in_allocation >/dev/null || return
  if cctl_enough_others; then
    cctl_exclude "$cctl_why" "$cctl_blamed"
    if [ "$cctl_why" = drained ]; then cctl_blamed=''
    elif [ -n "$cctl_excluded" ]; then cctl_go_without_blamed; fi
    [ -z "$cctl_excluded" ] || return 0
  else
    echo "clusterctl: $cctl_words, but node $cctl_blamed is not left out: this job needs $cctl_held_count nodes," \
      "and Slurm shows $cctl_others others like it on which it may run"
  fi
  cctl_blamed=''
  return 1
}
cctl_enough_others() { # nodes that work, without the blamed one, and have what the job's nodes have
  local cctl_job cctl_named cctl_node cctl_size cctl_cpus cctl_gres cctl_state cctl_held_names cctl_all=()
  local cctl_least_size='' cctl_least_cpus='' cctl_kinds=' '
  cctl_others=0
  cctl_job=$(cctl_ask 30 scontrol show job "$cctl_own_job")
  # Slurm counts the nodes of each kind, or takes all from one: `[a*2&b*1]`, `[a|b]`.
  [[ ! $cctl_job =~ [[:space:]]Features=[^[:space:]]*\[ ]] || return
  cctl_held_names=$(cctl_names_of "$cctl_held")
  [[ $cctl_held_names == *" $cctl_blamed "* ]] || return
  mapfile -t cctl_all < <(cctl_list_allowed)
  while read -r _ cctl_node cctl_size cctl_cpus cctl_gres _; do
    [[ $cctl_held_names == *" $cctl_node "* ]] || continue
    [ "$cctl_size" -ge "${cctl_least_size:-$((cctl_size + 1))}" ] || cctl_least_size=$cctl_size
    [ "$cctl_cpus" -ge "${cctl_least_cpus:-$((cctl_cpus + 1))}" ] || cctl_least_cpus=$cctl_cpus
    cctl_kinds+="$cctl_gres "
  done < <(printf '%s\n' "${cctl_all[@]}")
  while read -r cctl_named cctl_node cctl_size cctl_cpus cctl_gres cctl_state; do
    if [ "$cctl_node" = "$cctl_blamed" ]; then
      [ "$cctl_named" != named ] || { cctl_others=0 && return 1; }
      continue
    fi
    case ${cctl_state//power*_down/} in *drain* | *down* | *fail* | *not_responding* | *unknown*) continue ;; esac
    [ "$cctl_size" -ge "${cctl_least_size:-0}" ] && [ "$cctl_cpus" -ge "${cctl_least_cpus:-0}" ] &&
      [[ $cctl_kinds == *" $cctl_gres "* ]] && cctl_others=$((cctl_others + 1))
  done < <(printf '%s\n' "${cctl_all[@]}")
  [ "$cctl_others" -ge "$cctl_held_count" ]
}

# The nodes of its partition on which the job may run, as Slurm shows it in cctl_job, a line each: "named" (in `nodelist`) or
# "other", its name, its MiB of memory, its CPUs, its GRES, its state.
cctl_list_allowed() {
  local cctl_partition cctl_wanted='' cctl_avoided='' cctl_reserved=''
  local cctl_name cctl_node cctl_size cctl_cpus cctl_gres cctl_state cctl_features
  [[ $cctl_job =~ [[:space:]]Partition=([^[:space:],]+) ]] && cctl_partition=${BASH_REMATCH[1]} || return
  [[ ! $cctl_job =~ [[:space:]]ReqNodeList=([^[:space:]]+) ]] || cctl_wanted=$(cctl_names_of "${BASH_REMATCH[1]}")
  [[ ! $cctl_job =~ [[:space:]]ExcNodeList=([^[:space:]]+) ]] || cctl_avoided=$(cctl_names_of "${BASH_REMATCH[1]}")
  if [[ $cctl_job =~ [[:space:]]Reservation=([^[:space:]]+) ]] && [ "${BASH_REMATCH[1]}" != '(null)' ]; then
    [[ $(cctl_ask 30 scontrol show reservation "${BASH_REMATCH[1]}") =~ [[:space:]]Nodes=([^[:space:]]+) ]] || return
    cctl_reserved=$(cctl_names_of "${BASH_REMATCH[1]}")
  fi
  while read -r cctl_name cctl_node cctl_size cctl_cpus cctl_gres cctl_state cctl_features; do
    [ "${cctl_name%\*}" = "$cctl_partition" ] && [[ $cctl_size =~ ^[0-9]+ ]] && cctl_size=${BASH_REMATCH[0]} || continue
    [ -z "$cctl_reserved" ] || [[ $cctl_reserved == *" $cctl_node "* ]] || continue
    while [[ $cctl_gres =~ ^(.*)\([^\)]*\)(.*)$ ]]; do cctl_gres=${BASH_REMATCH[1]}${BASH_REMATCH[2]}; done # (S:0-1)
    if [[ $cctl_wanted == *" $cctl_node "* ]]; then cctl_name=named
    elif [[ $cctl_avoided != *" $cctl_node "* ]] && cctl_has_features "$cctl_features"; then cctl_name=other
    else continue; fi
    echo "$cctl_name $cctl_node $cctl_size ${cctl_cpus##*/} ${cctl_gres:-none} $cctl_state"
  done < <(
    cctl_ask 30 sinfo --noheader --Node \
      --Format=Partition:100,NodeList:100,Memory:40,CPUsState:60,Gres:400,StateComplete:200,Features:2000
  )
}
cctl_names_of() { # a list of nodes, as Slurm shows it: its names between spaces
  [ "$1" = '(null)' ] || echo " $(cctl_ask 30 scontrol show hostnames "$1" | tr '\n' ' ')"
}
# Whether a node with these features fulfils the job's constraint, which Slurm reads from left to right: `a > !b` is "a and
# b" of truth values, and `a >= !b` is "a or b", both of the same precedence. With counts, as in `[a*2&b*1]`, some nodes
# have the one and some the other.
cctl_has_features() {
  local cctl_text='' cctl_value='' cctl_one cctl_next='^([][()&|,]|\*[0-9]+|[^][()&|,*]+)(.*)$'
  [[ $cctl_job =~ [[:space:]]Features=([^[:space:]]+) ]] && cctl_text=${BASH_REMATCH[1]}
  [ "${cctl_text:-(null)}" != '(null)' ] || return 0
  [[ $cctl_text != *'*'* ]] || cctl_text=${cctl_text//&/|}
  while [[ $cctl_text =~ $cctl_next ]]; do
    cctl_one=${BASH_REMATCH[1]} cctl_text=${BASH_REMATCH[2]}
    case $cctl_one in
      '[' | '(') cctl_value+='(' ;;
      ']' | ')') cctl_value+=')' ;;
      '&' | ',') cctl_value+='>!' ;;
      '|') cctl_value+='>=!' ;;
      '*'*) ;;
      *) [[ ,$1, == *",$cctl_one,"* ]] && cctl_value+=1 || cctl_value+=0 ;;
    esac
  done
  [ -n "$cctl_text" ] || ((cctl_value)) 2>/dev/null
}

# The rest is the same for every run (launcher/submission/batch.sh of clusterctl); the values above are this run's.
# shellcheck disable=SC2329 # functions that are called by name

# Changes made on other nodes may show up here late and out of order, and a call may fail that would succeed a second
# later (docs/decisions/late-and-weak-file-systems.md). Only the file systems below show changes to all nodes at once.
cctl_late=70 # seconds; NFS caches a folder for up to a minute (acdirmax)
case $(stat -f -c %T "$cctl_run" 2>/dev/null) in
  btrfs | ceph | ext2/ext3 | f2fs | gpfs | lustre | overlayfs | ramfs | tmpfs | xfs | zfs) cctl_late=0 ;;
esac
cctl_signal=
cctl_await() { # repeats a check while its answer may be out of date
  local cctl_deadline=$((SECONDS + cctl_late))
  until "$@"; do
    [ "$SECONDS" -lt "$cctl_deadline" ] && [ -z "$cctl_signal" ] || return 1
    sleep 1
  done
}
cctl_with_retries() { # for a command that is safe to repeat
  local cctl_try
  for cctl_try in {1..5}; do
    "$@" && return
    sleep 1
  done
  return 1
}
cctl_renamed() { # from, to: also succeeds if an earlier try worked although it reported an error
  mv -T "$1" "$2" || { [ ! -e "$1" ] && [ -e "$2" ]; }
}

# Attempts are numbered. Only the last one can have finished the run: one that was considered lost may still be ending.
# A folder belongs to an attempt once its script has recorded its number there: anybody may have made an empty one.
cctl_claimed() { # number
  local cctl_host=
  { read -r cctl_host <"$cctl_run/attempts/$1/host.json"; } 2>/dev/null
  [[ $cctl_host == *'"attempt": '"$1,"* ]]
}
# Restarts within the same start of the job (cctl_start_again): how many there were, how many of the last ones without
# progress, and the furthest step that was logged and saved.
declare +x cctl_agains=${cctl_agains:-0} cctl_fruitless=${cctl_fruitless:-0}
declare +x cctl_furthest=${cctl_furthest:--1} cctl_furthest_saved=${cctl_furthest_saved:--1}
cctl_number=0
cctl_last=''
while [ -d "$cctl_run/attempts/$cctl_number" ]; do
  ! cctl_claimed "$cctl_number" || cctl_last=$cctl_number
  cctl_number=$((cctl_number + 1))
done
[ -z "$cctl_last" ] || [ ! -e "$cctl_run/attempts/$cctl_last/marks/finished" ] || exit 0
[ -z "$cctl_succeeds" ] || [ "$cctl_agains" -gt 0 ] || cctl_is_needed || exit "$cctl_unneeded"
# A run may be queued for days, and someone may delete its files meanwhile.
for cctl_gone in "$cctl_run/code/lib" "$cctl_run/run.json" ${cctl_environment:+"$cctl_environment/bin/python"}; do
  cctl_await [ -e "$cctl_gone" ] ||
    { echo "clusterctl[launch]: removed since submission: $cctl_gone; submit the job again" >&2; exit 66; }
done
{ cctl_only_ours "$cctl_run" "$cctl_run/" "$cctl_run/code" "$cctl_run/code/" \
  ${cctl_environment:+"$cctl_environment" "$cctl_environment/bin/"} && [ -O "$cctl_run/code/lib" ] &&
  { [ -O "$cctl_run/attempts" ] || [ ! -e "$cctl_run/attempts" ]; } && [ ! -L "$cctl_run/attempts" ]; } ||
  { echo "clusterctl[launch]: not owned by this user, or writable by others: $cctl_run, its code or environment" >&2; exit 77; }

# Claim the next attempt. From here on this script's output goes to its host.log.
umask 077
cctl_failed=0
until cctl_problem=$(LC_ALL=C mkdir "$cctl_run/attempts/$cctl_number" 2>&1); do
  case $cctl_problem in
    *"File exists"*) cctl_number=$((cctl_number + 1)) && continue ;; # although it may not be visible here yet
    *"Input/output error"* | *"Stale file handle"*) cctl_failed=$((cctl_failed + 1)) && sleep 1 ;;
    *) cctl_failed=5 ;;
  esac
  [ "$cctl_failed" -lt 5 ] ||
    { echo "clusterctl[launch]: cannot write to $cctl_run/attempts: $cctl_problem" >&2; exit 73; }
done
cctl_attempt=$cctl_run/attempts/$cctl_number
cctl_write_secret() { # authenticates the attempt's processes to each other (shared/record/secret.py)
  od -An -vtx1 -N32 /dev/urandom | tr -d ' \n' >"$cctl_attempt/secret" && [ "$(wc -c <"$cctl_attempt/secret")" -eq 64 ]
}
cctl_log_here() { exec >>"$cctl_attempt/host.log" 2>&1; }
cctl_with_retries mkdir -p "$cctl_attempt/nodes" "$cctl_attempt/logs" "$cctl_attempt/marks" &&
  cctl_with_retries cctl_write_secret ||
  { echo "clusterctl[launch]: cannot write to $cctl_attempt: is the disk full?" >&2; exit 73; }
echo "=== $cctl_number ===" # Slurm appends its messages about the job's end to this log, which all attempts share
cctl_with_retries cctl_log_here

trap 'cctl_signal=TERM' TERM # time limit, scancel or preemption: remember it, wait for srun, record the end
# The seconds since the epoch into a variable, from bash 5 on with their fraction: a restart in the job takes less than one.
# Without a program: a node that is shutting down may not start any more.
cctl_moment_of() {
  local cctl_now=${EPOCHREALTIME/[!0-9]/.}
  [[ $cctl_now =~ ^[0-9]+[.][0-9]+$ ]] || printf -v cctl_now '%(%s)T' -1
  printf -v "$1" %s "$cctl_now"
}
cctl_moment_of cctl_start
cctl_room=$((${#SLURM_JOB_NODELIST} + 700)) # characters of a record
cctl_setup_times=                           # JSON fields: when `node_setup` began and ended
cctl_places=                                # JSON fields: the nodes that the job holds beside those of the ranks
# Every step names its nodes, since lines of `setup` may change Slurm's variables.
cctl_held=$SLURM_JOB_NODELIST cctl_held_count=$SLURM_JOB_NUM_NODES
cctl_keep_variables() { # even with flags srun reads these
  export SLURM_JOB_NODELIST=$cctl_held SLURM_NODELIST=$cctl_held
  export SLURM_JOB_NUM_NODES=$cctl_held_count SLURM_NNODES=$cctl_held_count
}
cctl_use() { # nodes, how many: the ranks run on these
  cctl_nodes=$1 cctl_shape=(--nodelist="$1" --nodes="$2" --ntasks="$cctl_ranks")
}
cctl_reach() { # nodes, how many: from now on, a command for each node is for these
  cctl_on_each=(--overlap --mem=0 --nodelist="$1" --nodes="$2" --ntasks="$2" --ntasks-per-node=1 --mpi=none --input=none)
}
cctl_has_spares() { declare -F cctl_choose_nodes >/dev/null; }
if cctl_has_spares; then cctl_choose_nodes
elif declare -F cctl_in_allocation >/dev/null; then # srun chooses among them
  cctl_nodes=$cctl_held cctl_shape=()
  cctl_keep_variables() { :; }
else
  cctl_use "$cctl_held" "$cctl_held_count"
  cctl_reach "$cctl_held" "$cctl_held_count"
fi
# The record of the end overwrites one of the same length, which works even if the disk is full by then.
cctl_put() { # file, content
  local cctl_try
  for cctl_try in {1..30}; do
    printf "%-${cctl_room}s\n" "$2" 1<>"$1" && return
    [ "$cctl_try" -gt 1 ] || echo "clusterctl: cannot write $1: retrying for half a minute"
    sleep 1
  done
  return 1
}
cctl_record() { # name, further JSON fields
  local cctl_text
  printf -v cctl_text '{"attempt": %d, "job_id": "%s", "restart_count": %d, "nodes": "%s", "start": %s%s}' \
    "$cctl_number" "$SLURM_JOB_ID" "${SLURM_RESTART_COUNT:-0}" "$cctl_nodes" "$cctl_start" \
    "${cctl_flaws:+, \"setup\": [$cctl_flaws]}$cctl_setup_times$cctl_places$2"
  cctl_put "$cctl_attempt/$1" "$cctl_text"
}
cctl_record .host.json "" && cctl_with_retries cctl_renamed "$cctl_attempt/.host.json" "$cctl_attempt/host.json"
cctl_put "$cctl_attempt/.finished.json" "{}"
cctl_with_retries touch "$cctl_attempt/marks/.finished"

cctl_arrange_successor

export CLUSTERCTL_RUN_DIR=$cctl_run CLUSTERCTL_ATTEMPT=$cctl_number CLUSTERCTL_STARTS=$(cctl_starts_so_far)
# One environment for all programs (docs/decisions/programs-and-their-environment.md): the folder of the tasks' Python
# comes first on their PATH, preceded by environments that the setup lines activate unless the cluster file names that
# Python. Environments active in the submitter's shell are deactivated first: conda would not move them to the front
# again. The script's own PATH does not get the folder, which may contain another srun.
unset CONDA_SHLVL CONDA_DEFAULT_ENV
[ "$VIRTUAL_ENV/bin" = "${cctl_python%/*}" ] || unset VIRTUAL_ENV
[ "$CONDA_PREFIX/bin" = "${cctl_python%/*}" ] || unset CONDA_PREFIX
cctl_folder=
cctl_put_first() {
  local cctl_found
  cctl_found=$(type -P "$cctl_python") && [ "$(type -P python3)" != "${cctl_found%/*}/python3" ] || return
  cctl_folder=${cctl_found%/*}
  PATH=$cctl_folder:$PATH
}
[ -n "$cctl_python_is_named" ] || cctl_put_first
unset "${cctl_dropped[@]}"
export "${cctl_exports[@]}"
cctl_traps=$(trap -p TERM URG)
cctl_watch_setup
# shellcheck disable=SC2034 # read by the trap of setup.sh
cctl_first=$LINENO && eval "$cctl_setup"$'\n\ncctl_complete=yes' # the lines of the cluster file and of the job
cctl_plain_shell
cctl_setup_is_over
cctl_keep_variables
eval "$cctl_traps"
[ -z "$cctl_flaws" ] || cctl_record host.json "" # for those who watch the run
[ -z "$cctl_python_is_named" ] || cctl_put_first
[ -z "$cctl_python" ] || cctl_task=(env "PATH=$PATH" "${cctl_task[@]}")
[ "${#cctl_node_check[@]}" -eq 0 ] ||
  cctl_node_check=("${cctl_node_check[0]}" env "PATH=$PATH" "${cctl_node_check[@]:1}")
[ "${#cctl_node_setup[@]}" -eq 0 ] || cctl_node_setup=(env "PATH=$PATH" "${cctl_node_setup[@]}")
[ "${#cctl_tracker[@]}" -eq 0 ] || cctl_tracker=(env "PATH=$PATH" "${cctl_tracker[@]}")
[ -z "$cctl_folder" ] || { PATH=:$PATH && PATH=${PATH/":$cctl_folder:"/:} && PATH=${PATH#:}; }

# One task on each node, with a timeout: srun would keep waiting for a lost node.
cctl_on_each_node() { # seconds, command
  [ "$#" -eq 1 ] || timeout --kill-after=5 "$1" srun "${cctl_on_each[@]}" --quiet "${@:2}"
}
[ "${SLURM_RESTART_COUNT:-0}" -eq 0 ] || [ "$cctl_agains" -gt 0 ] || cctl_on_each_node 300 "${cctl_opening[@]}"

declare +x cctl_standby_pid=${cctl_standby_pid:-}
cctl_has_standby() { cctl_is_child "$cctl_standby_pid"; }
cctl_is_child() { # process: still one of this script, since the number may be another's by now
  local cctl_status=
  [ -n "$1" ] && { read -r cctl_status <"/proc/$1/stat"; } 2>/dev/null && [[ ${cctl_status##*) } == [!Z]" $$ "* ]]
}

# What an earlier attempt has left on these nodes must not run beside this one (shared/node/leftovers.py). After a restart
# in the job, the standbys end it, unless they are in an image, from which they may not see all processes.
cctl_end_leftovers() { cctl_on_each_node 60 "${cctl_ending[@]}" "$1" || true; } # the number of an attempt
[ "$cctl_number" -eq 0 ] || { [ -n "$cctl_python" ] && cctl_has_standby; } || cctl_end_leftovers "$cctl_number"

# Each node is checked first. Nodes that fail are excluded when the job starts again (shared/node/node_check.py).
cctl_unfit= # the nodes that Slurm must exclude
cctl_check_nodes() {
  [ "${#cctl_node_check[@]}" -gt 0 ] || return 0
  cctl_with_retries mkdir -p "$cctl_attempt/check" && cctl_on_each_node "${cctl_node_check[@]}"
  cctl_unfit=$(cctl_list_nodes | "${cctl_node_check[@]:1}" --judge)
  [ -z "$cctl_unfit" ] || { cctl_has_spares && cctl_replace_unfit; } || return 69
}
# The lines of `node_setup` may take hours: only the job's time limits them (launcher/submission/node_setup.sh).
cctl_node_setup_failed= # a field of host.json if one of its lines has failed
cctl_set_up_nodes() {
  [ "${#cctl_node_setup[@]}" -gt 0 ] || return 0
  local cctl_moment
  cctl_moment_of cctl_moment
  cctl_setup_times=", \"node_setup_start\": $cctl_moment"
  cctl_record host.json "" # for those who watch the run
  cctl_with_retries mkdir -p "$cctl_attempt/node_setup" &&
    cctl_on_each_node 0 --kill-on-bad-exit=1 --chdir="$cctl_run/work" "${cctl_node_setup[@]}"
  local cctl_ended=$?
  cctl_moment_of cctl_moment
  cctl_setup_times+=", \"node_setup_end\": $cctl_moment"
  cctl_record host.json ""
  [ "$cctl_ended" -ne 0 ] || return 0
  [ -n "$cctl_signal" ] || ! cctl_await cctl_a_line_failed || cctl_node_setup_failed=', "node_setup_failed": true'
  return "$cctl_ended"
}
cctl_a_line_failed() {
  local cctl_file cctl_text
  for cctl_file in "$cctl_attempt/node_setup"/*.json; do
    { read -r cctl_text <"$cctl_file"; } 2>/dev/null && [[ $cctl_text == *'"line": '[1-9]* ]] && return
  done
  return 1
}
cctl_list_nodes() {
  if cctl_has_spares; then printf '%s\n' "${cctl_chosen[@]}" "${cctl_idle[@]}"
  else scontrol show hostnames "$cctl_nodes"; fi
}

# A node that cannot copy the modules to its own disk imports them from the shared one (shared/node/staging.py).
cctl_copy_code() { cctl_on_each_node 900 "${cctl_staging[@]}" || true; }

# New metrics go to the trackers while the ranks run, and the rest when the tracker's input ends (launcher/trackers/mirror.py).
cctl_tracking=
cctl_tracker_pid=
cctl_start_tracker() {
  [ "${#cctl_tracker[@]}" -gt 0 ] || return 0
  coproc cctl_tracking { trap '' TERM && exec "${cctl_tracker[@]}" >&2; }
  cctl_tracker_input=${cctl_tracking[1]} # bash unsets both as soon as the coprocess has ended
  cctl_tracker_pid=$cctl_tracking_PID
}

# A process on each node imports what the ranks need, and becomes them, now and after restarts (shared/node/standby.py).
cctl_start_standby() {
  [ "${#cctl_standby[@]}" -gt 0 ] && ! cctl_has_standby || return 0
  export CLUSTERCTL_STANDBY=$SLURM_JOB_ID.$RANDOM$RANDOM$RANDOM
  (
    unset CLUSTERCTL_ATTEMPT # it belongs to none of them
    # shellcheck disable=SC2016 # the node expands it
    exec srun "${cctl_on_each[@]}" "${cctl_standby[@]}" sh -c 'trap "" USR2; exec "$@"' sh "${cctl_task[@]}" standby
  ) >/dev/null 2>&1 &
  cctl_standby_pid=$!
}
cctl_end_standby() {
  local cctl_deadline=$((SECONDS + 5))
  cctl_has_standby || return 0
  kill "$cctl_standby_pid"
  [ "${#cctl_closing[@]}" -gt 0 ] || return 0
  while cctl_has_standby && [ "$SECONDS" -lt "$cctl_deadline" ]; do sleep 0.05; done # an image in use is not removed
}

# Slurm numbers a job's steps anew at each start. An srun that was cut off together with its node may still end its step
# when the node returns: every other start leaves a number out, so that this ends no step of ours.
cctl_leave_step_out() {
  [ $((${SLURM_RESTART_COUNT:-0} % 2)) -eq 0 ] || [ "$cctl_agains" -gt 0 ] ||
    timeout --kill-after=5 60 srun --overlap --mem=0 --nodelist="$SLURMD_NODENAME" --nodes=1 --ntasks=1 --mpi=none --input=none --quiet true || true
}

# One log per rank. The warning may come before Python can handle it, and would kill it: USR2 is blocked until the task
# unblocks it, or ignored if env cannot block signals (GNU coreutils before 8.31, busybox).
# shellcheck disable=SC2016 # the task expands it
cctl_make_work && cctl_check_nodes && cctl_set_up_nodes && cctl_copy_code && cctl_leave_step_out && cctl_start_tracker &&
  cctl_start_standby && { ! cctl_has_spares || cctl_start_guard; } && [ -z "$cctl_signal" ] &&
  "${cctl_srun[@]}" "${cctl_shape[@]}" \
  --output="$cctl_attempt/logs/rank_%5t.out" --error="$cctl_attempt/logs/rank_%5t.err" \
  sh -c '[ "$0" = sh ] || [ -e "$0" ] || {
    echo "clusterctl[launch]: not in its image: pyxis is not active on node $SLURMD_NODENAME" >&2; exit 66; }
    trap "" USR2; env --block-signal=USR2 true 2>/dev/null && set -- env --block-signal=USR2 "$@"; exec "$@"' \
  "${cctl_in_image:-sh}" "${cctl_task[@]}"
cctl_code=$?
cctl_moment_of cctl_end

cctl_superseded() {
  local cctl_later=$((cctl_number + 1))
  while [ -d "$cctl_run/attempts/$cctl_later" ]; do
    ! cctl_claimed "$cctl_later" || return 0
    cctl_later=$((cctl_later + 1))
  done
  return 1
}
# Count the ranks in each state, and read their requests, from the names of the marks (shared/record/marks.py): a task requests a
# restart with a mark because there is no scontrol inside a container. No program is used: a command line cannot hold so
# many names. A listing without the script's own mark has failed.
cctl_look() {
  local cctl_marks cctl_mark cctl_try
  for cctl_try in {1..5}; do
    shopt -s nullglob dotglob
    cctl_marks=("$cctl_attempt"/marks/*)
    shopt -u nullglob dotglob
    cctl_running=0 cctl_left_well=0 cctl_asked_to_leave=0 cctl_left_badly=0 cctl_cut=0 cctl_told=0
    cctl_asked='' cctl_stuck='' cctl_unasked='' cctl_listed='' cctl_broken=()
    for cctl_mark in "${cctl_marks[@]##*/}"; do
      case $cctl_mark in
        *.running) cctl_running=$((cctl_running + 1)) ;;
        *.done) cctl_left_well=$((cctl_left_well + 1)) ;;
        *.asked) cctl_asked_to_leave=$((cctl_asked_to_leave + 1)) ;;
        *.ended) cctl_left_badly=$((cctl_left_badly + 1)) ;;
        *.term) cctl_left_badly=$((cctl_left_badly + 1)) cctl_told=$((cctl_told + 1)) ;;
        *.cut) cctl_left_badly=$((cctl_left_badly + 1)) cctl_cut=$((cctl_cut + 1)) ;;
        *.broken)
          cctl_left_badly=$((cctl_left_badly + 1)) cctl_mark=${cctl_mark#*.}
          cctl_broken+=("${cctl_mark%.broken}") ;;
        restart) cctl_asked=yes ;;
        no-progress) cctl_stuck=yes ;;
        unasked) cctl_unasked=yes ;;
        .finished) cctl_listed=yes ;;
      esac
    done
    [ -z "$cctl_listed" ] && [ "$cctl_try" -lt 5 ] || return 0
    sleep 1
  done
}
# srun exits with 0 even if a node is lost: the run is finished only when every rank has reported it.
cctl_ended_well() { [ "$cctl_left_well" -eq "$cctl_ranks" ]; }
# The mark of a killed rank still reads "running"; one that failed or was asked to leave records how it ended. If all
# ranks have lost their connections, or were ended by srun for that, the network has failed.
cctl_killed() { cctl_rank_killed || cctl_cut_off; }
cctl_rank_killed() { [ "$cctl_running" -gt 0 ] || cctl_killed_at_once; }
cctl_cut_off() { [ "$cctl_cut" -gt 0 ] && [ "$((cctl_cut + cctl_told))" -eq "$cctl_ranks" ]; }
cctl_gpu_broke() { # according to its rank; no other has failed for a reason of its own
  [ "${#cctl_broken[@]}" -gt 0 ] && [ "$((${#cctl_broken[@]} + cctl_cut + cctl_told))" -eq "$cctl_left_badly" ]
}
cctl_begun() { [ "$((cctl_running + cctl_left_well + cctl_asked_to_leave + cctl_left_badly))" -gt 0 ]; }
cctl_killed_at_once() { # a rank, before it made its mark, according to srun's first line about a task
  local cctl_line
  [ "$((cctl_left_well + cctl_asked_to_leave + cctl_left_badly))" -lt "$cctl_ranks" ] || return
  while IFS= read -r cctl_line; do
    [[ $cctl_line =~ ^srun:\ error:\ [^\ ]+:\ tasks?\ [0-9,-]+:\ (.*) ]] || continue
    [[ ${BASH_REMATCH[1]} == Killed* ]]
    return
  done <"$cctl_attempt/host.log"
  return 1
}
# Whether the marks of other nodes are complete: how each rank ended, and the restart request if a rank left because of
# one.
cctl_settled() {
  cctl_look
  [ -n "$cctl_asked" ] || [ "$((cctl_left_well + cctl_left_badly))" -eq "$cctl_ranks" ]
}
# The image's unpacking was killed, by the warning according to pyxis, or by TERM: a preemption if the job still runs.
cctl_interrupted() {
  ! cctl_begun && [ "$cctl_restarts" -gt 0 ] || return
  if [ "$cctl_signal" = TERM ]; then
    [[ $(cctl_ask 5 scontrol show job "$cctl_own_job") == *JobState=RUNNING* ]]
  else
    grep -qrsw "terminated with signal $(kill -l USR2)" "$cctl_attempt/host.log" "$cctl_attempt/logs"
  fi
}
cctl_saved() {
  compgen -G "$cctl_run/checkpoints/$cctl_number-*" >/dev/null || cctl_wrote
}
cctl_wrote() ( # whether there is a file of `restart.progress` that is newer than this attempt
  [ -n "$cctl_progress" ] && cd "$cctl_run/work" || exit
  while IFS= read -r cctl_file; do
    [ ! "$cctl_file" -nt "$cctl_attempt/secret" ] || exit 0
  done < <(compgen -G "$cctl_progress")
  exit 1
)
cctl_progressed() {
  if [ -n "$cctl_asked" ]; then [ -z "$cctl_stuck" ]
  elif cctl_begun; then
    cctl_saved || { [ "$cctl_late" -gt 0 ] && cctl_with_retries cctl_saved; } # a failed listing is empty
  fi
}
# A program that left after the warning may not have saved. Without a sign of progress the run goes on once.
cctl_unproven=
cctl_look_for_progress() {
  local cctl_before=$((cctl_number - 1))
  ! cctl_saved && [ "$(cctl_last_step "$cctl_number")" -le "$(cctl_last_step "$cctl_before")" ] || return 0
  [ ! -e "$cctl_run/attempts/$cctl_before/marks/unproven" ] || { cctl_stuck=yes && return; }
  cctl_with_retries touch "$cctl_attempt/marks/unproven"
  cctl_unproven=', "unproven": true'
  echo "clusterctl: nothing shows that the program has saved; it is started again once: set restart.progress to its files"
}
cctl_last_step() { # the last one that an attempt logged
  local cctl_text
  cctl_text=$(tail -c 4096 "$cctl_run/attempts/$1/metrics.jsonl" 2>/dev/null)
  if [[ ${cctl_text##*'"step": '} =~ ^[0-9]{1,15} ]]; then echo "$((10#${BASH_REMATCH[0]}))"; else echo -1; fi
}
# Whether the tasks start again at once, on the same nodes: only the time of a few imports is lost.
cctl_may_start_again() {
  [ -n "$cctl_most_fruitless" ] && [ -z "$cctl_signal$cctl_unfit$cctl_full$cctl_short" ] || return
  if [ -n "$cctl_lost" ]; then :
  elif [ -n "$cctl_defect" ]; then cctl_has_spares
  elif [ -n "$cctl_asked" ]; then cctl_hung && [ -z "$cctl_stuck" ]; else cctl_killed; fi || return
  ! cctl_superseded && [ ! -e "$cctl_run/cancel.json" ] || return
  [ "$((${SLURM_JOB_END_TIME:-$((${cctl_end%.*} + 3600))} - ${cctl_end%.*}))" -gt 60 ] || return # else the queue gives a new limit
  local cctl_step cctl_step_saved=-1
  cctl_step=$(cctl_last_step "$cctl_number")
  cctl_read_saved
  cctl_fruitless=$((cctl_fruitless + 1))
  ! cctl_wrote || cctl_fruitless=0
  if [ "$cctl_step" -gt "$cctl_furthest" ]; then cctl_furthest=$cctl_step cctl_fruitless=0; fi
  if [ "$cctl_step_saved" -gt "$cctl_furthest_saved" ]; then cctl_furthest_saved=$cctl_step_saved cctl_fruitless=0; fi
  [ "$cctl_fruitless" -le "$cctl_most_fruitless" ] && { ! cctl_has_spares || cctl_review_nodes; } && ! cctl_exclude_blamed
}
cctl_read_saved() { # the furthest step of this attempt's checkpoints
  local cctl_text
  for cctl_text in "$cctl_run/checkpoints/$cctl_number"-*; do
    [[ ! ${cctl_text##*-} =~ ^[0-9]{1,15}$ ]] || [ "$((10#${BASH_REMATCH[0]}))" -le "$cctl_step_saved" ] ||
      cctl_step_saved=$((10#${BASH_REMATCH[0]}))
  done
}
cctl_hung() { # a restart is also requested after a warning; the request says why (shared/record/marks.py)
  local cctl_request
  cctl_request=$(cat "$cctl_run/requeue.json" 2>/dev/null)
  [[ $cctl_request == *'"attempt": '"$cctl_number,"* && $cctl_request == *'"reason": "hang"'* ]]
}
# This script begins anew, with the environment that Slurm gave it, and claims the next attempt.
cctl_start_again() {
  local cctl_standby_name=$CLUSTERCTL_STANDBY cctl_words
  cd "$cctl_run" && cctl_as_begun || return
  exec >>"$cctl_run/slurm.log" 2>&1
  exec env "${cctl_words[@]}" "cctl_agains=$((cctl_agains + 1))" "cctl_succeeds=$cctl_succeeds" \
    "cctl_starts=$cctl_starts" "cctl_fruitless=$cctl_fruitless" \
    "cctl_furthest=$cctl_furthest" "cctl_furthest_saved=$cctl_furthest_saved" \
    "cctl_standby_pid=$cctl_standby_pid" ${cctl_standby_name:+"CLUSTERCTL_STANDBY=$cctl_standby_name"} \
    "${cctl_kept[@]}" "$BASH" "$0"
}
cctl_finish() {
  cctl_put "$cctl_attempt/.finished.json" "{\"attempt\": $cctl_number, \"time\": $cctl_end}" &&
    cctl_with_retries cctl_renamed "$cctl_attempt/.finished.json" "$cctl_run/finished.json" &&
    cctl_with_retries cctl_renamed "$cctl_attempt/marks/.finished" "$cctl_attempt/marks/finished"
}
# Why the run is not started again although it is unfinished; empty if it is (shared/record/marks.py).
cctl_refusal() {
  if cctl_superseded; then echo superseded
  elif [ -e "$cctl_run/cancel.json" ]; then echo cancelled
  elif declare -F cctl_in_allocation >/dev/null; then echo in-allocation
  elif [ -n "$cctl_short" ] && [ "${#cctl_more[@]}" -eq 0 ]; then
    if [ -n "$cctl_problem" ]; then echo requeue-failed; else echo "no-more-$cctl_short"; fi
  elif [ -n "$cctl_doomed" ]; then echo killed-again
  elif [ -z "$cctl_unfit$cctl_taken$cctl_lost$cctl_short" ] && ! cctl_progressed; then echo no-progress
  elif ! cctl_starts_left; then echo restart-limit
  fi
}
# Slurm may be unreachable for minutes. When it requeues, it sends TERM to the whole script: scontrol must ignore it.
cctl_requeue() {
  # scontrol itself may wait for two minutes (SlurmctldTimeout)
  local cctl_answer cctl_failed cctl_try cctl_deadline=$((SECONDS + 600))
  cctl_problem=
  for cctl_try in {1..60}; do
    ! cctl_superseded || return 1 # this script was cut off with its node, and the job runs elsewhere
    cctl_answer=$(trap '' TERM; scontrol requeue "$cctl_own_job" 2>&1) && return
    cctl_failed=$?
    case $cctl_answer in
      *"pending execution"*) return ;; # requeued already: by a preemption, or the answer was lost
    esac
    if [ -z "$cctl_problem" ]; then
      echo "clusterctl: scontrol requeue failed: $cctl_answer"
      cctl_problem=", \"requeue_problem\": \"$(cctl_in_json "${cctl_answer:-exit code $cctl_failed}")\""
      cctl_record_end ', "requeuing": true'"$cctl_problem"
    fi
    [ "$cctl_failed" -ne 127 ] || return 1 # there is no scontrol
    case $cctl_answer in
      *disabled* | *denied* | *"nvalid job id"* | *"nvalid user id"* | *"already completing or completed"*) return 1 ;;
    esac
    [ "$SECONDS" -lt "$cctl_deadline" ] && [ ! -e "$cctl_run/cancel.json" ] || return 1
    sleep 10
  done
  return 1
}
# The job's time limit by now, which tells a warning before it from a preemption: an administrator may have changed it.
cctl_time_limit() {
  local cctl_job
  cctl_job=$(cctl_ask 5 scontrol show job "$cctl_own_job")
  [[ $cctl_job =~ [[:space:]]TimeLimit=([0-9:-]+) ]] && echo ", \"limit\": \"${BASH_REMATCH[1]}\""
}
cctl_close() {
  cctl_end_standby
  ! cctl_has_spares || cctl_end_guard
  # After TERM Slurm starts no more steps of this job; those of an allocation go on.
  [ "$cctl_code" -eq 0 ] || { [ -n "$cctl_signal" ] && [ -z "$cctl_node_list" ]; } ||
    cctl_end_leftovers $((cctl_number + 1))
  cctl_on_each_node 60 "${cctl_closing[@]}"
}

# A cancellation or preemption sends TERM to one step after another: it may reach the tasks long before this script. If a
# rank was killed, srun has sent it to the others.
cctl_hear_of_term() {
  local cctl_try
  for cctl_try in {1..50}; do
    [ "$cctl_code" -eq 143 ] && [ -z "$cctl_signal" ] && { cctl_look && ! cctl_rank_killed; } || return 0
    sleep 0.1
  done
}
# Within the time that Slurm gives a preempted job to end (GraceTime), TERM reaches the ranks alone. The job would end with
# this script, and not be requeued.
cctl_yield() {
  [ -z "$cctl_signal$cctl_asked" ] && [ "$cctl_told" -gt 0 ] && ! cctl_rank_killed && cctl_job_yields || return 0
  if cctl_starts_left; then cctl_signal=TERM cctl_taken=yes
  else # Slurm may requeue it all the same
    until [ -n "$cctl_signal" ] || ! cctl_job_yields; do sleep 1; done
  fi
}
cctl_hear_of_term
if [ "${SLURM_JOB_NUM_NODES:-2}" -eq 1 ] || [ -n "$cctl_unfit$cctl_lost" ]; then cctl_look; else cctl_await cctl_settled; fi
cctl_taken='' # its nodes, for another job
cctl_yield
if [ -n "$cctl_asked" ]; then
  cctl_code=75
elif cctl_ended_well; then
  cctl_code=0 # even if srun, or a process other than the ranks, has failed
  cctl_superseded || cctl_finish
elif [ "$cctl_code" -eq 0 ]; then
  cctl_code=1
  if cctl_has_spares; then cctl_lost=${cctl_lost:-unknown}
  else cctl_signal=${cctl_signal:-LOST}; fi # Slurm starts the job again
fi
cctl_full= # if so, messages of the ranks may be lost
{ printf . >"$cctl_attempt/.room" && [ -s "$cctl_attempt/.room" ]; } 2>/dev/null || cctl_full=', "disk_full": true'
cctl_drop_copies "$cctl_run/.work.$cctl_number"
cctl_record_end() { # further JSON fields
  local cctl_fields=", \"end\": $cctl_end, \"exit_code\": $cctl_code, \"signal\": \"$cctl_signal\""
  cctl_record host.json "$cctl_fields${cctl_asked:+, \"asked\": true}${cctl_unasked:+, \"unasked\": true}$cctl_unproven$cctl_limit$cctl_no_work$cctl_node_setup_failed$cctl_full$cctl_loss$cctl_grown$cctl_kills${cctl_excluded:+, \"excluded\": [$cctl_excluded]}$1"
}
# Without the attempt in its environment: what carries it is ended before the next one.
cctl_notify() {
  [ "${#cctl_notifier[@]}" -eq 0 ] ||
    env -u CLUSTERCTL_ATTEMPT timeout -k 1 9 "${cctl_notifier[@]}" </dev/null || true
}
# At most ten seconds; `clusterctl notify` and `clusterctl track` send the rest later.
cctl_report_end() {
  local cctl_deadline=$((SECONDS + 10))
  [ -z "$cctl_tracker_pid" ] || eval "exec $cctl_tracker_input>&-"
  cctl_notify
  [ -n "$cctl_tracker_pid" ] || return 0
  until [ "$SECONDS" -ge "$cctl_deadline" ] || ! kill -0 "$cctl_tracker_pid"; do sleep 0.1; done 2>/dev/null
  kill -KILL "$cctl_tracker_pid" 2>/dev/null
  cctl_tracker_pid=
}
cctl_refused=''
cctl_problem=''
cctl_limit=''
cctl_defect='' # the nodes of broken GPUs
[ -n "$cctl_signal$cctl_asked" ] || ! cctl_gpu_broke || cctl_defect=${cctl_broken[*]}
[ -z "$cctl_asked" ] || cctl_limit=$(cctl_time_limit)
cctl_short=''  # memory or time, if the run was short of that, and may go on with more
[ "$cctl_code" -eq 0 ] || [ "$cctl_signal" = LOST ] || [ -n "$cctl_unfit$cctl_lost$cctl_node_setup_failed" ] ||
  ! declare -F cctl_look_for_shortage >/dev/null || cctl_look_for_shortage
if [ "$cctl_code" -ne 0 ] && [ "$cctl_signal" != LOST ] && [ -z "$cctl_node_setup_failed" ] &&
  { [ -n "$cctl_asked$cctl_unfit$cctl_lost$cctl_defect" ] || { [ -z "$cctl_signal" ] && cctl_killed; } ||
    { [ "$cctl_agains" -gt 0 ] && [ -z "$cctl_signal" ] && ! cctl_begun; } || cctl_interrupted ||
    [ -n "$cctl_short$cctl_taken" ] || { cctl_preempted && cctl_taken=yes; }; }; then
  cctl_count_kills
  if [ -z "$cctl_doomed" ] && cctl_may_start_again; then
    cctl_record_end ', "restarting": true'
    if [ -n "$cctl_tracker_pid" ]; then cctl_report_end; else cctl_notify & fi
    cctl_start_again
    echo "clusterctl: cannot start the tasks again on these nodes"
  fi
  if [ -n "$cctl_defect" ]; then cctl_exclude gpu "${cctl_broken[@]}"
  elif [ -n "$cctl_unfit" ] && [ -z "$cctl_excluded" ]; then
    IFS=, read -ra cctl_broken < <(echo "$cctl_unfit")
    cctl_exclude check "${cctl_broken[@]}"
  elif [ -z "$cctl_excluded" ]; then
    cctl_exclude_blamed
  fi
  [ -z "$cctl_unasked" ] || cctl_look_for_progress
  cctl_refused=$(cctl_refusal)
  if [ -z "$cctl_refused" ]; then
    cctl_record_end ', "requeuing": true' # before requeueing, since Slurm then ends this script
    cctl_report_end
    cctl_close
    cctl_before=$cctl_signal
    if cctl_go_on; then
      cctl_signal=$cctl_before # not the one that the requeue brought
      cctl_record_end ', "requeued": true'
      cctl_leave_out
      exit "$cctl_code"
    fi
    cctl_refused=requeue-failed
    ! cctl_superseded || cctl_refused=$(cctl_refusal)
    [ -n "$cctl_asked" ] || cctl_signal=LOST # perhaps with its node, and Slurm has already started the job again
  fi
  echo "clusterctl: not started again: $cctl_refused"
fi
cctl_record_end "${cctl_refused:+, \"refused\": \"$cctl_refused\"$cctl_problem}"
cctl_report_end
cctl_close
# Of a job that was ended from outside, its successor learns from Slurm whether the run goes on.
[ "$cctl_refused" = superseded ] || { [ -n "$cctl_signal" ] && [ "$cctl_code" -ne 0 ] && [ -z "$cctl_refused" ]; } ||
  cctl_drop_successor
exit "$cctl_code"

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

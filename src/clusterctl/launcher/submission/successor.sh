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

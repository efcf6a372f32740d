# A run that was short of memory or time goes on with more of it (restart.grow; launcher/submission/grow.sh of clusterctl),
# in another job: users cannot raise the limits of one that runs. Factors are in percent, and empty for never.
cctl_look_for_shortage() { # sets cctl_short, and if there is more to have cctl_more and cctl_grown
  if cctl_out_of_memory; then cctl_short=memory
  elif cctl_out_of_time; then cctl_short=time
  else return; fi
  if cctl_short_of; then echo "clusterctl: out of $cctl_short: the next job gets ${cctl_more[*]}"
  elif [ -n "$cctl_problem" ]; then echo "clusterctl: out of $cctl_short, and Slurm does not answer"
  else echo "clusterctl: out of $cctl_short, and the partition allows no more"; fi
}
# The kernel's kill counts only if Slurm, or the standby of a task, reports it about this job, and a rank was killed or
# says that one of its processes was: PyTorch's data loader, torchrun with those that build on it, and mp.spawn. The report
# may be a moment behind srun.
cctl_out_of_memory() {
  local cctl_worker='is killed by signal: Killed|traceback *: Signal 9 \(SIGKILL\) received by PID [0-9]+'
  cctl_worker+='|ProcessExitedException: process [0-9]+ terminated with signal SIGKILL'
  [ -n "$cctl_grow_memory" ] && [ -z "$cctl_signal$cctl_asked" ] || return
  cctl_rank_killed || grep -rqsaE "$cctl_worker" "$cctl_attempt/logs" || return
  local cctl_try
  for cctl_try in {1..3}; do
    ! cctl_kernel_killed || return 0
    sleep 1
  done
  return 1
}
cctl_kernel_killed() {
  local cctl_line cctl_kill='oom[-_ ]kill event|exceeded (job |step )?memory limit|OOM Killed'
  while IFS= read -r cctl_line; do
    [[ ${cctl_line,,} =~ step(id=|\ )([0-9]+) ]] && [ "${BASH_REMATCH[2]}" != "$SLURM_JOB_ID" ] || return 0
  done < <(
    grep -rhsaiE "^(slurmstepd|srun|clusterctl)[a-z0-9._-]*: .*($cctl_kill)" "$cctl_attempt/host.log" "$cctl_attempt/logs"
    grep -hsaE '^srun: error: [^ ]+: tasks? [0-9,-]+: Out Of Memory$' "$cctl_attempt/host.log"
  )
  return 1
}
# Slurm's word, or a task that was warned at the limit and had got nowhere.
cctl_out_of_time() {
  [ -n "$cctl_grow_time" ] || return
  if [ -n "$cctl_asked" ]; then
    [ -n "$cctl_stuck" ] && ! cctl_hung && [ $((${SLURM_JOB_END_TIME:-$((${cctl_end%.*} + 3600))} - ${cctl_end%.*})) -lt $((cctl_warning + 60)) ]
    return
  fi
  [ "$cctl_signal" = TERM ] || return
  local cctl_try
  for cctl_try in {1..10}; do
    ! grep -qsaE "^slurmstepd[^ :]*: error: \*\*\* JOB $SLURM_JOB_ID ON .* CANCELLED AT .* DUE TO TIME LIMIT" "$cctl_run/slurm.log" || return 0
    sleep 0.2
  done
  return 1
}
cctl_short_of() { # asks Slurm what this job has, and what its partition allows
  local cctl_job cctl_allowed='' cctl_had cctl_gets cctl_most='' cctl_size
  cctl_job=$(cctl_ask 10 scontrol show job "$cctl_own_job")
  [ -n "$cctl_job" ] || { cctl_problem=', "requeue_problem": "no answer from scontrol show job"' && return 1; }
  [[ ! $cctl_job =~ [[:space:]]Partition=([^[:space:],]+) ]] ||
    cctl_allowed=$(cctl_ask 10 scontrol show partition "${BASH_REMATCH[1]}")
  if [ "$cctl_short" = time ]; then
    [[ $cctl_job =~ [[:space:]]TimeLimit=([0-9:-]+) ]] || return
    cctl_had=$(cctl_seconds "${BASH_REMATCH[1]}") cctl_gets=$((cctl_had * cctl_grow_time / 100))
    [[ ! $cctl_allowed =~ [[:space:]]MaxTime=([0-9:-]+) ]] || cctl_most=$(cctl_seconds "${BASH_REMATCH[1]}")
  else
    cctl_had=${SLURM_MEM_PER_NODE:-${SLURM_MEM_PER_CPU:-0}}
    cctl_most=$(cctl_most_memory)
    if [ "$cctl_had" -eq 0 ]; then # all that its nodes have
      read -r cctl_had < <(cctl_ask 10 sinfo -h -N -n "$SLURM_JOB_NODELIST" -O Memory:20 | sort -n)
      [ -n "$cctl_had" ] || { cctl_problem=', "requeue_problem": "no answer from sinfo"' && return 1; }
      cctl_had=${cctl_had%%[!0-9]*}
    fi
    cctl_gets=$((cctl_had * cctl_grow_memory / 100))
    if [[ $cctl_allowed =~ [[:space:]]MaxMemPerNode=([0-9]+) ]] && [ "${BASH_REMATCH[1]}" -lt "${cctl_most:-999999999}" ]; then
      cctl_most=${BASH_REMATCH[1]}
    fi
    if [ -n "$SLURM_MEM_PER_CPU" ] && [ -n "$cctl_most" ]; then
      cctl_size=${SLURM_CPUS_ON_NODE:-1} && cctl_most=$((cctl_most / cctl_size))
    fi
  fi
  [ "$cctl_gets" -le "${cctl_most:-$cctl_gets}" ] || cctl_gets=$cctl_most
  [ "$cctl_gets" -gt "$cctl_had" ] || return
  if [ "$cctl_short" = time ]; then cctl_more=("--time=$(((cctl_gets + 59) / 60))")
  elif [ -n "$SLURM_MEM_PER_CPU" ]; then cctl_more=("--mem-per-cpu=${cctl_gets}M")
  else cctl_more=("--mem=${cctl_gets}M"); fi
  cctl_grown=", \"grown\": {\"what\": \"$cctl_short\", \"had\": $cctl_had, \"gets\": $cctl_gets}"
}
# The MiB that as many nodes of the partition have as the job needs, of those that it may run on: the larger nodes are of
# no use to a job that excludes them. The nodes that it names (`nodelist`) must all have it. Empty if unknown.
cctl_most_memory() {
  local cctl_named cctl_size cctl_needed=${SLURM_JOB_NUM_NODES:-1} cctl_own=() cctl_others=()
  while read -r cctl_named _ cctl_size _; do
    if [ "$cctl_named" = named ]; then cctl_own+=("$cctl_size"); else cctl_others+=("$cctl_size"); fi
  done < <(cctl_list_allowed)
  mapfile -t cctl_others < <(printf '%s\n' "${cctl_others[@]}" | sort -rn)
  cctl_needed=$((cctl_needed - ${#cctl_own[@]}))
  [ "$cctl_needed" -le 0 ] || cctl_own+=("${cctl_others[cctl_needed - 1]}")
  printf '%s\n' "${cctl_own[@]}" | sort -n | { read -r cctl_size && echo "$cctl_size"; }
}
cctl_seconds() { # in a limit as Slurm shows it: 1-02:03:04 or 03:04
  local cctl_days=0 cctl_clock=$1 cctl_parts
  case $1 in *-*) cctl_days=$((10#${1%%-*})) cctl_clock=${1#*-} ;; esac
  IFS=: read -ra cctl_parts <<<"$cctl_clock"
  while [ "${#cctl_parts[@]}" -lt 3 ]; do cctl_parts=(0 "${cctl_parts[@]}"); done
  echo $((cctl_days * 86400 + 10#${cctl_parts[0]} * 3600 + 10#${cctl_parts[1]} * 60 + 10#${cctl_parts[2]}))
}
# A successor that waits already gets the larger limit; else it is queued with it.
cctl_go_on_with_more() {
  local cctl_answer cctl_change=TimeLimit=${cctl_more[0]#*=}
  case ${cctl_more[0]} in
    --mem=*) cctl_change=MinMemoryNode=${cctl_more[0]#*=} ;;
    --mem-per-cpu=*) cctl_change=MinMemoryCPU=${cctl_more[0]#*=} ;;
  esac
  if cctl_has_successor; then
    cctl_answer=$(trap '' TERM; timeout -s KILL 30 scontrol update "JobId=$(cctl_next_jobs)" "$cctl_change" 2>&1) && return
    cctl_problem=", \"requeue_problem\": \"$(cctl_in_json "${cctl_answer:-scontrol update failed}")\""
    return 1
  fi
  cctl_queue_patiently
}

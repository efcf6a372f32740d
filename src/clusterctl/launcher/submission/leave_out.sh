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

# A job that holds spare nodes, or may go on with fewer (launcher/submission/spares.sh of clusterctl), is not ended by Slurm
# when it loses a node (--no-kill). Each attempt chooses the nodes of its ranks by name; what it knows passes to the next.
declare +x cctl_nodes_so_far=${cctl_nodes_so_far:-//} # the chosen ones / the spare ones / those left out
declare +x cctl_guards=${cctl_guards:-} cctl_guard_pid=${cctl_guard_pid:-}
cctl_lost=() # those of the attempt's nodes that have been lost
cctl_choose_nodes() {
  local cctl_all
  mapfile -d / -t cctl_all < <(printf %s "$cctl_nodes_so_far") # no here-string: it may need room in /tmp
  read -ra cctl_chosen < <(echo "${cctl_all[0]}")
  read -ra cctl_idle < <(echo "${cctl_all[1]}")
  # NODE:REASON:SPARE, or nothing instead of the spare one, or "-" if the node was a spare one itself
  read -ra cctl_left_out < <(echo "${cctl_all[2]}")
  if [ "${#cctl_chosen[@]}" -eq 0 ]; then # a new start of the job
    mapfile -t cctl_all < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
    cctl_chosen=("${cctl_all[@]:0:cctl_wanted_nodes}") cctl_idle=("${cctl_all[@]:cctl_wanted_nodes}")
  fi
  [ "${#cctl_chosen[@]}" -gt 0 ] ||
    { echo "clusterctl[launch]: scontrol does not list the nodes: $SLURM_JOB_NODELIST" >&2; exit 69; }
  cctl_all="${cctl_chosen[*]}${cctl_idle[*]}${cctl_left_out[*]}"
  cctl_room=$((3 * ${#cctl_all} + 60 * (${#cctl_chosen[@]} + ${#cctl_idle[@]} + ${#cctl_left_out[@]}) + 600))
  cctl_use_nodes
}
cctl_use_nodes() { # for the ranks
  local IFS=, cctl_one cctl_node cctl_reason cctl_spare cctl_list=''
  cctl_ranks=$((${#cctl_chosen[@]} * cctl_tasks_on_each))
  cctl_use "${cctl_chosen[*]}" "${#cctl_chosen[@]}"
  for cctl_one in "${cctl_left_out[@]}"; do
    cctl_node=${cctl_one%%:*} cctl_spare=${cctl_one##*:} cctl_reason=${cctl_one#*:}
    cctl_reason=${cctl_reason%:*}
    cctl_list+="${cctl_list:+, }{\"node\": \"$cctl_node\", \"why\": \"$cctl_reason\", \"by\": \"$cctl_spare\"}"
  done
  cctl_one=${cctl_guards%/guards}
  cctl_one=${cctl_one##*/}
  cctl_places=", \"ranks\": $cctl_ranks, \"guards\": ${cctl_one:-$cctl_number}, \"host\": \"$SLURMD_NODENAME\""
  cctl_places+=", \"spares\": \"${cctl_idle[*]}\", \"left_out\": [$cctl_list]"
  cctl_reach_nodes
}
cctl_reach_nodes() {
  local IFS=, cctl_all=("${cctl_chosen[@]}" "${cctl_idle[@]}")
  cctl_reach "${cctl_all[*]}" "${#cctl_all[@]}"
}
cctl_is_among() { # word, words
  local cctl_one
  for cctl_one in "${@:2}"; do [ "$1" != "$cctl_one" ] || return 0; done
  return 1
}
cctl_replace() { # reason, nodes: by spare ones, as far as there are any
  local cctl_reason=$1 cctl_node cctl_place cctl_stay=()
  shift
  for cctl_node in "${cctl_idle[@]}"; do
    if cctl_is_among "$cctl_node" "$@"; then cctl_left_out+=("$cctl_node:$cctl_reason:-")
    else cctl_stay+=("$cctl_node"); fi
  done
  cctl_idle=("${cctl_stay[@]}")
  for cctl_place in "${!cctl_chosen[@]}"; do
    cctl_node=${cctl_chosen[cctl_place]}
    cctl_is_among "$cctl_node" "$@" || continue
    cctl_left_out+=("$cctl_node:$cctl_reason:${cctl_idle[0]}")
    if [ "${#cctl_idle[@]}" -eq 0 ]; then unset "cctl_chosen[cctl_place]"
    else cctl_chosen[cctl_place]=${cctl_idle[0]}; fi
    cctl_idle=("${cctl_idle[@]:1}")
  done
  cctl_chosen=("${cctl_chosen[@]}")
  cctl_reach_nodes
}
cctl_enough_nodes() { # if this script's own is lost, others end the job
  [ "${#cctl_chosen[@]}" -ge "$cctl_least_nodes" ] && ! cctl_is_among "$SLURMD_NODENAME" "${cctl_lost[@]}"
}
cctl_replace_unfit() { # those that failed their check, before any rank has started
  local cctl_all
  IFS=, read -ra cctl_all < <(echo "$cctl_unfit")
  cctl_replace check "${cctl_all[@]}"
  cctl_enough_nodes || return
  cctl_unfit=''
  cctl_use_nodes
  cctl_record host.json ""
}
# Before a restart in the job: Slurm may have lost a node first, and one that it drains is worse than a spare one. Fails if
# too few nodes are left.
cctl_review_nodes() {
  local cctl_node cctl_state cctl_there=() cctl_gone=() cctl_poor=() cctl_good=() cctl_worse=()
  cctl_replace_lost
  [ -z "$cctl_defect" ] || cctl_replace gpu "${cctl_broken[@]}"
  cctl_state=$(cctl_ask 30 scontrol show job "$cctl_own_job")
  [[ ! $cctl_state =~ [[:space:]]NodeList=([^[:space:]]+) ]] ||
    mapfile -t cctl_there < <(scontrol show hostnames "${BASH_REMATCH[1]}")
  for cctl_node in "${cctl_chosen[@]}" "${cctl_idle[@]}"; do
    [ "${#cctl_there[@]}" -eq 0 ] || cctl_is_among "$cctl_node" "${cctl_there[@]}" || cctl_gone+=("$cctl_node")
  done
  for cctl_node in "${cctl_chosen[@]}"; do
    ! cctl_is_among "$cctl_node" "${cctl_gone[@]}" || cctl_lost+=("$cctl_node")
  done
  [ "${#cctl_gone[@]}" -eq 0 ] || cctl_replace down "${cctl_gone[@]}"
  while read -r cctl_node cctl_state; do
    case $cctl_state in *drain* | *fail* | *down* | *not_responding*) cctl_poor+=("$cctl_node") ;; esac
  done < <(cctl_ask 30 sinfo --noheader --Node --Format=NodeList:100,StateComplete:100)
  for cctl_node in "${cctl_idle[@]}"; do
    if cctl_is_among "$cctl_node" "${cctl_poor[@]}"; then cctl_worse+=("$cctl_node"); else cctl_good+=("$cctl_node"); fi
  done
  cctl_idle=("${cctl_good[@]}")
  for cctl_node in "${cctl_chosen[@]}"; do
    [ "${#cctl_idle[@]}" -eq 0 ] || ! cctl_is_among "$cctl_node" "${cctl_poor[@]}" || cctl_replace drained "$cctl_node"
  done
  if cctl_is_among "$cctl_blamed" "${cctl_chosen[@]}" && [ "${#cctl_idle[@]}" -gt 0 ]; then
    cctl_replace killed "$cctl_blamed"
    cctl_go_without_blamed
  fi
  cctl_idle+=("${cctl_worse[@]}")
  cctl_nodes_so_far="${cctl_chosen[*]}/${cctl_idle[*]}/${cctl_left_out[*]}"
  cctl_kept=("cctl_nodes_so_far=$cctl_nodes_so_far" "cctl_guards=$cctl_guards" "cctl_guard_pid=$cctl_guard_pid")
  cctl_enough_nodes
}

# A process on each node watches another one, long before Slurm notices that it is off (shared/node/guard.py).
cctl_start_guard() {
  ! cctl_is_child "$cctl_guard_pid" || return 0
  cctl_guards=$cctl_attempt/guards
  cctl_with_retries mkdir -p "$cctl_guards" && : >"$cctl_guards/lost" &&
    cctl_list_nodes >"$cctl_guards/nodes" || return 0 # without them, Slurm notices
  (
    unset CLUSTERCTL_ATTEMPT # it belongs to none of them
    exec srun "${cctl_on_each[@]}" "${cctl_guard[@]}" "$cctl_guards" "$cctl_own_job" "$SLURMD_NODENAME"
  ) >/dev/null 2>&1 &
  cctl_guard_pid=$!
}
cctl_end_guard() { ! cctl_is_child "$cctl_guard_pid" || kill "$cctl_guard_pid"; }
cctl_find_lost() { # which nodes are missed, of the attempt's and this one
  local cctl_node
  cctl_lost=()
  while read -r cctl_node; do
    ! cctl_is_among "$cctl_node" "$SLURMD_NODENAME" "${cctl_chosen[@]}" || cctl_lost+=("$cctl_node")
  done <"$cctl_guards/lost"
  [ "${#cctl_lost[@]}" -gt 0 ]
} 2>/dev/null
cctl_replace_lost() { # also a spare one
  local cctl_all=()
  mapfile -t cctl_all <"$cctl_guards/lost"
  cctl_replace lost "${cctl_all[@]}"
} 2>/dev/null
cctl_on_chosen_nodes() { # the tasks' srun, which waits for a lost node until Slurm has noticed it, too
  local cctl_step cctl_watcher cctl_status cctl_list cctl_count=${#cctl_chosen[@]}
  # Programs of the user's own read these variables.
  SLURM_JOB_NODELIST=$cctl_nodes SLURM_NODELIST=$cctl_nodes SLURM_JOB_NUM_NODES=$cctl_count SLURM_NNODES=$cctl_count \
    "$@" &
  cctl_step=$!
  (until cctl_find_lost; do sleep 0.5; done && kill -KILL "$cctl_step") &
  cctl_watcher=$!
  wait "$cctl_step" 2>/dev/null # bash would report that it was killed
  cctl_status=$?
  while kill -0 "$cctl_step" 2>/dev/null; do # a signal has interrupted `wait`
    wait "$cctl_step" 2>/dev/null
    cctl_status=$?
  done
  if [ -n "$cctl_signal" ]; then # it may have ended just then
    wait "$cctl_step" 2>/dev/null
    cctl_status=$?
  fi
  kill "$cctl_watcher" 2>/dev/null
  wait "$cctl_watcher" 2>/dev/null
  if cctl_find_lost; then
    printf -v cctl_list '"%s", ' "${cctl_lost[@]}"
    cctl_loss=", \"lost\": [${cctl_list%, }]"
    cctl_replace_lost
    cctl_on_each_node 15 "${cctl_ending[@]}" "$((cctl_number + 1))" now # the other ranks wait for the lost ones
  fi
  return "$cctl_status"
}

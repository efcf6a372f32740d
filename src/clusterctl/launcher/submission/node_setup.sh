# One node's part of `node_setup`, whose lines are the arguments. The first one that fails is recorded with its number and
# code, and ends the attempt.
cctl_folder=$CLUSTERCTL_RUN_DIR/attempts/$CLUSTERCTL_ATTEMPT/node_setup
cctl_line=0 cctl_begun=$SECONDS
cctl_end() { # exit code
  trap - EXIT
  [ "$1" -ne 0 ] || cctl_line=0
  cctl_record="{\"node\": \"$SLURMD_NODENAME\", \"line\": $cctl_line, \"code\": $1, \"seconds\": $((SECONDS - cctl_begun))}"
  builtin printf '%s\n' "$cctl_record" >"$cctl_folder/.$SLURMD_NODENAME" &&
    command mv -T "$cctl_folder/.$SLURMD_NODENAME" "$cctl_folder/$SLURMD_NODENAME.json"
  builtin exit "$1"
}
mkdir -p "$cctl_folder" && exec >"$cctl_folder/$SLURMD_NODENAME.log" 2>&1 || exit
trap 'cctl_end "$?"' EXIT
trap 'trap - EXIT; exit 143' TERM # another node has failed, or the job is being ended
for cctl_text; do
  cctl_line=$((cctl_line + 1))
  eval "$cctl_text" # with `||` after it, `set -e` would mean nothing in the line
  cctl_code=$?
  [ "$cctl_code" -eq 0 ] || cctl_end "$cctl_code"
done

# The rest is the same for every array (launcher/submission/array.sh of clusterctl): each element is one run of the sweep, and
# executes that run's own script.
run=$runs/${element[$SLURM_ARRAY_TASK_ID]}
for _ in {1..70}; do # NFS may take this long to show a new folder
  [ ! -r "$run/script.sh" ] || break
  sleep 1
done
[ ! -e "$run/script.sh" ] || { cctl_only_ours "$run" "$run/" && [ -O "$run/script.sh" ] && [ ! -L "$run/script.sh" ]; } ||
  { echo "clusterctl[launch]: not owned by this user, or writable by others: $run" >&2; exit 77; }
cd "$run" && [ -r script.sh ] && exec /bin/bash "$run/script.sh"
echo "clusterctl[launch]: cannot read $run/script.sh; submit it again: clusterctl resume ${run##*/}" >&2
exit 66

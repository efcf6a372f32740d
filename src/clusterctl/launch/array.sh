# What follows is the same for every array (launch/array.sh of clusterctl): each element is one run of the sweep, and
# executes that run's own script.
run=$runs/${element[$SLURM_ARRAY_TASK_ID]}
for try in {1..70}; do # NFS may show a new folder so late
  [ -r "$run/script.sh" ] && cd "$run" && exec /bin/bash "$run/script.sh"
  sleep 1
done
echo "clusterctl[launch]: cannot read $run/script.sh; submit it anew: clusterctl resume ${run##*/}" >&2
exit 66

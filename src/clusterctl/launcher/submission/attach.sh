# Joins a rank (launcher/submission/attach.sh of clusterctl). Arguments: the PID of the rank on its node, then a command.
pid=$1
shift
[ -d "/proc/$pid" ] || { echo "the rank's process is gone: $pid" >&2; exit 1; }
while IFS= read -r -d '' variable; do
  case $variable in
    SLURM_PROCID=*) export "RANK=${variable#*=}" ;; # torchrun's name: the SLURM_* variables here describe this step
    SLURM_LOCALID=*) export "LOCAL_RANK=${variable#*=}" ;;
    SLURM_NTASKS=*) export "WORLD_SIZE=${variable#*=}" ;;
    SLURM_* | TERM=* | HOME=*) ;;
    *=*) export "${variable?}" ;;
  esac
done <"/proc/$pid/environ"
[ "$#" -ne 0 ] || set -- sh -c 'command -v bash >/dev/null && exec bash || exec sh'
if [ "$(readlink "/proc/$pid/ns/mnt")" = "$(readlink /proc/self/ns/mnt)" ]; then
  cd "/proc/$pid/cwd" && cd "$(pwd -P)" && exec "$@"
fi
joined=()
[ "$(readlink "/proc/$pid/ns/user")" = "$(readlink /proc/self/ns/user)" ] || joined=(--user --preserve-credentials)
[ "$(readlink "/proc/$pid/ns/net")" = "$(readlink /proc/self/ns/net)" ] || joined+=(--net)
exec nsenter --target "$pid" "${joined[@]}" --mount --root --wd -- "$@"

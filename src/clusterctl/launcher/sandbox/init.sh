#!/bin/sh
# The first process of a node, in the node's own namespaces: sets it up, starts slurmd, and reaps children. A shell takes
# a tenth of Python's memory. `init.sh NODE ADDRESS FOLDER`; a line on stdin signals that eth0 is connected.
set -e
node=$1 address=$2 folder=$3
echo "$node" >/proc/sys/kernel/hostname
mount -t tmpfs tmpfs /dev/shm
for name in hosts nsswitch.conf; do # those of this host would use a name server that no node can reach
  [ ! -e "/etc/$name" ] || mount --bind "$folder/etc/$name" "/etc/$name"
done
read -r _ # fails if the process that connects it has died
ip -batch - <<END
link set lo up
addr add $address/24 dev eth0
link set eth0 up
END
slurmd -D -N "$node" </dev/null &
set +e
while :; do # tasks survive a crash of slurmd, as on a real node
  wait
  sleep 1
done

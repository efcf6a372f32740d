#!/bin/sh
# The first process of a node, in namespaces of the node's own: sets it up, starts slurmd, and reaps its children. A shell,
# as it takes a tenth of Python's memory. `init.sh NODE ADDRESS FOLDER`; a line on its input says that eth0 is plugged in.
set -e
node=$1 address=$2 folder=$3
echo "$node" >/proc/sys/kernel/hostname
mount -t tmpfs tmpfs /dev/shm
for name in hosts nsswitch.conf; do # this host would ask a name server that no node can reach
  [ ! -e "/etc/$name" ] || mount --bind "$folder/etc/$name" "/etc/$name"
done
read -r _ # fails if whoever was to plug it in has died
ip -batch - <<END
link set lo up
addr add $address/24 dev eth0
link set eth0 up
END
slurmd -D -N "$node" </dev/null &
set +e
while :; do # tasks outlive a slurmd that crashed, as they do on a real node
  wait
  sleep 1
done

#!/usr/bin/env bash
# Install Slurm's packages where that is possible (root on Debian or Ubuntu); say in one line what is skipped elsewhere.
set -euo pipefail
packages=(slurm-wlm slurm-client munge slurmdbd mariadb-server libslurm-dev iproute2 tmux)

missing=()
for package in "${packages[@]}"; do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
done
[ ${#missing[@]} -eq 0 ] && exit 0
if ! command -v apt-get >/dev/null || [ "$(id -u)" -ne 0 ]; then
  echo "skipped: installing Slurm for the tests (needs root on Debian or Ubuntu): apt-get install ${missing[*]}"
  exit 0
fi
export DEBIAN_FRONTEND=noninteractive
# Services must not start: the tests start daemons of their own.
policy=/usr/sbin/policy-rc.d
if ! [ -e "$policy" ]; then
  printf '#!/bin/sh\nexit 101\n' >"$policy"
  chmod +x "$policy"
  trap 'rm -f "$policy"' EXIT
fi
apt-get update -qq
apt-get install -qq -y --no-install-recommends "${missing[@]}" >/dev/null

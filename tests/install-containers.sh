#!/usr/bin/env bash
# Install what builds images where that is possible (root on Debian or Ubuntu); say in one line what is skipped elsewhere.
#   install-containers.sh            buildah, and what makes a base image and a squashfs
#   install-containers.sh docker     a docker daemon's packages too (make test-long)
set -euo pipefail
packages=(buildah mmdebstrap squashfs-tools)
[ "${1-}" = docker ] && packages+=(docker.io)

missing=()
for package in "${packages[@]}"; do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
done
[ ${#missing[@]} -eq 0 ] && exit 0
if ! command -v apt-get >/dev/null || [ "$(id -u)" -ne 0 ]; then
  echo "skipped: installing what builds images (needs root on Debian or Ubuntu): apt-get install ${missing[*]}"
  exit 0
fi
export DEBIAN_FRONTEND=noninteractive
# Services must not start: the tests start a daemon of their own.
policy=/usr/sbin/policy-rc.d
if ! [ -e "$policy" ]; then
  printf '#!/bin/sh\nexit 101\n' >"$policy"
  chmod +x "$policy"
  trap 'rm -f "$policy"' EXIT
fi
apt-get update -qq
apt-get install -qq -y --no-install-recommends "${missing[@]}" >/dev/null

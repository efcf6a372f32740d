#!/usr/bin/env bash
# Install OpenSSH's server for the tests where that is possible (root on Debian or Ubuntu); its service does not start.
set -euo pipefail
command -v ssh >/dev/null && [ -x /usr/sbin/sshd ] && exit 0
if ! command -v apt-get >/dev/null || [ "$(id -u)" -ne 0 ]; then
  echo "skipped: installing sshd for the tests (needs root on Debian or Ubuntu): apt-get install openssh-server"
  exit 0
fi
export DEBIAN_FRONTEND=noninteractive
policy=/usr/sbin/policy-rc.d
if ! [ -e "$policy" ]; then
  printf '#!/bin/sh\nexit 101\n' >"$policy"
  chmod +x "$policy"
  trap 'rm -f "$policy"' EXIT
fi
apt-get update -qq
apt-get install -qq -y --no-install-recommends openssh-server openssh-client >/dev/null

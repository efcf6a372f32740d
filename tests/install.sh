#!/usr/bin/env bash
# Install packages that some tests need (as root on Debian or Ubuntu); elsewhere print what is skipped.
#   install.sh slurm       Slurm's daemons, and tmux
#   install.sh images      tools that build images
#   install.sh docker      the docker daemon
#   install.sh shells      shells, for the tests of completion
#   install.sh sshd        the SSH server, for remote clusters
#   install.sh browser     a browser, for the tests of HTML pages
#   install.sh allocators  a C library and an allocator other than glibc's
set -euo pipefail

packages=()
for purpose; do
  case $purpose in
    slurm) packages+=(slurm-wlm slurm-client munge slurmdbd mariadb-server libslurm-dev iproute2 tmux) ;;
    images) packages+=(buildah mmdebstrap squashfs-tools) ;;
    docker) packages+=(docker.io) ;;
    shells) packages+=(zsh fish tcsh) ;;
    allocators) packages+=(musl-tools libjemalloc2) ;;
    sshd) packages+=(openssh-server openssh-client) ;;
    browser)
      for browser in chromium chromium-browser google-chrome; do
        command -v "$browser" >/dev/null && continue 2
      done
      packages+=(chromium)
      ;;
    *) echo "error: no such purpose: $purpose" >&2; exit 2 ;;
  esac
done

missing=()
for package in "${packages[@]}"; do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
done
[ ${#missing[@]} -eq 0 ] && exit 0
if ! command -v apt-get >/dev/null || [ "$(id -u)" -ne 0 ]; then
  echo "skipped: packages for the tests (root on Debian or Ubuntu): apt-get install ${missing[*]}"
  exit 0
fi
export DEBIAN_FRONTEND=noninteractive
policy=/usr/sbin/policy-rc.d
if ! [ -e "$policy" ]; then # start no services: the tests start their own daemons
  printf '#!/bin/sh\nexit 101\n' >"$policy"
  chmod +x "$policy"
  trap 'rm -f "$policy"' EXIT
fi
apt-get update -qq
apt-get install -qq -y --no-install-recommends "${missing[@]}" >/dev/null

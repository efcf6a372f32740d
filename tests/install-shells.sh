#!/usr/bin/env bash
# Install the shells whose completion is tested, where that is possible (root on Debian or Ubuntu).
set -euo pipefail
command -v zsh >/dev/null && command -v fish >/dev/null && exit 0
if ! command -v apt-get >/dev/null || [ "$(id -u)" -ne 0 ]; then
  echo "skipped: installing shells for the tests (needs root on Debian or Ubuntu): apt-get install zsh fish"
  exit 0
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -qq -y --no-install-recommends zsh fish >/dev/null

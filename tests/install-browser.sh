#!/usr/bin/env bash
# Install the browser that the report is tested in, where that is possible (root on Debian or Ubuntu).
set -euo pipefail
for browser in chromium chromium-browser google-chrome; do
  command -v "$browser" >/dev/null && exit 0
done
if ! command -v apt-get >/dev/null || [ "$(id -u)" -ne 0 ]; then
  echo "skipped: installing a browser for the tests (needs root on Debian or Ubuntu): apt-get install chromium"
  exit 0
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -qq -y --no-install-recommends chromium >/dev/null

#!/usr/bin/env bash
# Run the tests on another system's Slurm and Python, or with the oldest packages that pyproject.toml names.
#   portability.sh trixie [PYTEST ARGS]     with Debian 13's Slurm and Python, in a root made by mmdebstrap (needs root)
#   portability.sh sid [PYTEST ARGS]        with Debian's newest Slurm
#   portability.sh plain                    README's first command in a minimal Debian 12, with the packages README names
#   portability.sh minimum [PYTEST ARGS]    with the oldest packages, on this system
# AS=someone runs them as an ordinary user in that root. ROOTS is the folder for roots and environments, made only once.
# The last line is a row of the table in docs/portability.md.
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
system=${1:?trixie, sid, plain or minimum}
shift
words=("$@")
[ $# -gt 0 ] || words=(-m "not long" tests/sandbox tests/slurm tests/end_to_end tests/faults)
roots=${ROOTS:-${XDG_CACHE_HOME:-$HOME/.cache}/clusterctl/roots}
packages=python3,python3-venv,slurm-wlm,slurm-client,munge,slurmdbd,mariadb-server,libslurm-dev,iproute2,tmux,gcc,libc6-dev
packages+=,make,git,mount,squashfs-tools,ca-certificates,util-linux,procps
[ "$system" != sid ] || packages+=,apptainer # no other Debian has one
user=${AS:-root}

oldest() { # the oldest versions of all required packages
  python3 - "$here/pyproject.toml" <<'EOF'
import re, sys, tomllib
project = tomllib.load(open(sys.argv[1], "rb"))["project"]
extras = project["optional-dependencies"]
used = ("train", "accelerate", "dashboard", "mcp", "tensorboard")
for requirement in [*project["dependencies"], *(one for name in used for one in extras[name])]:
    print(re.sub(r">=([^,]*).*", r"==\1", requirement))
EOF
}

copy_code() { # copy the tracked files, including uncommitted changes, to $1
  mkdir -p "$1"
  rm -rf "$1/src/clusterctl" "$1/tests" "$1/benchmarks" # remove files that were deleted here
  git -C "$here" ls-files -z | tar -C "$here" --null --files-from=- --ignore-failed-read -cf - | tar -C "$1" -xf -
}

in_root() { # run a command as $user in $root, in its own PID and mount namespaces: all processes end with it
  # shellcheck disable=SC2016 # the inner shell expands them
  unshare --mount --pid --fork --kill-child --mount-proc -- bash -euc '
    root=$1 user=$2
    shift 2
    mount --make-rprivate /
    mount --bind "$root" "$root"
    mount -t proc proc "$root/proc"
    for folder in sys dev; do mount --rbind "/$folder" "$root/$folder"; done
    mount -t tmpfs tmpfs "$root/run"
    mount -t tmpfs tmpfs "$root/dev/shm"
    for folder in $BINDS; do
      mkdir -p "$root/$folder"
      mount --bind -o ro "$folder" "$root/$folder"
    done
    cd "$root"
    pivot_root . . # in a chroot the kernel refuses user namespaces
    umount --lazy .
    exec chroot --userspec="$user:" / "$@"' - "$root" "$user" "$@"
}

make_root() { # with the mmdebstrap options $@
  [ "$(id -u)" -eq 0 ] || { echo "skipped: a root of another Debian needs root"; exit 0; }
  command -v mmdebstrap >/dev/null || { echo "skipped: no mmdebstrap (apt install mmdebstrap)"; exit 0; }
  root=$roots/$system
  if ! [ -e "$root/.made" ]; then
    rm -rf --one-file-system "$root"
    mkdir -p "$root"
    # a mirror may lag behind: sid's lists are valid for a week
    mmdebstrap --quiet --aptopt='Acquire::Check-Valid-Until "false"' "$@" "$root"
    chroot "$root" useradd --create-home someone
    touch "$root/.made"
  fi
  # pip's settings, and the folders of this machine that they refer to
  for file in /etc/pip.conf /etc/resolv.conf /etc/hosts; do [ ! -e "$file" ] || cp -L "$file" "$root$file"; done
  for file in "$HOME/.config/pip/pip.conf" "$HOME/.pip/pip.conf"; do [ ! -e "$file" ] || cp "$file" "$root/etc/pip.conf"; done
  cp -L /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/" # may include a CA of this site
  BINDS=$(python3 -m pip config list | grep -o '/opt/[^/ '"'"']*' | sort -u | tr '\n' ' ' || true)
  export BINDS
}

tests() { # run the tests on system $1 in the checkout $2, with a new .venv
  cd "$2"
  rm -f .portability.xml
  make setup >&2
  unset PIP_CONSTRAINT # tests install other versions
  .venv/bin/python -m pytest -q -p no:cacheprovider --junitxml=.portability.xml "${@:3}" >&2 || true
  .venv/bin/python - "$1" <<'EOF'
import importlib.metadata as m, os, platform, pwd, subprocess, sys, xml.etree.ElementTree as xml
suite = xml.parse(".portability.xml").getroot()[0].attrib
count = {key: int(suite[key]) for key in ("tests", "failures", "errors", "skipped")}
passed = count["tests"] - count["failures"] - count["errors"] - count["skipped"]
try:
    slurm = subprocess.run(["slurmctld", "-V"], capture_output=True, text=True).stdout.split()[-1]
except (OSError, IndexError):
    slurm = "none"
versions = [slurm, platform.python_version(), m.version("torch"), pwd.getpwuid(os.geteuid()).pw_name]
numbers = f"{passed} passed, {count['failures']} failed, {count['errors']} errors, {count['skipped']} skipped"
print("|", " | ".join([sys.argv[1], *versions, numbers]), "|")
EOF
}

if [ "$system" = minimum ]; then
  place=$roots/minimum
  copy_code "$place"
  oldest >"$place/.oldest.txt"
  # mypy's errors depend on the packages' annotations
  PIP_CONSTRAINT=$place/.oldest.txt TORCH=torch tests minimum "$place" --ignore=tests/test_style.py "${words[@]}"
elif [ "$system" = plain ]; then
  for found in '' "$(grep -oP 'apt install \Kmake python3-venv' "$here/README.md")"; do
    rm -rf --one-file-system "$roots/plain"
    make_root --variant=minbase --include="$(tr ' ' , <<<"ca-certificates make python3${found:+ $found}")" bookworm
    copy_code "$root/home/someone/clusterctl"
    chroot "$root" chown -R someone: /home/someone
    mapfile -t kept < <(env | grep -E '^(PIP_|TORCH)' || true)
    output=$(user=someone in_root env -i PATH=/usr/bin:/bin HOME=/home/someone "${kept[@]}" \
      make -C /home/someone/clusterctl run 2>&1) && code=0 || code=$?
    tail -n 3 <<<"$output" >&2
    if [ -z "$found" ]; then # the message names what is missing, and nothing half-made is left
      wanted='apt install python3-venv'
      [ "$code" -ne 0 ] && [ ! -e "$root/home/someone/clusterctl/.venv" ] || wanted='a failure'
    else
      wanted='finished.*test accuracy'
      [ "$code" -eq 0 ] || wanted='a success'
    fi
    grep -q "$wanted" <<<"$output" || { echo "make run: code $code, and not: $wanted"; exit 1; }
  done
  echo "| plain Debian 12 | make run with $found | finished |"
else
  make_root --variant=apt --include="$packages" "$system"
  home=/home/someone place=/home/someone/clusterctl
  copy_code "$root$place"
  chroot "$root" chown -R "$user:" "$place"
  chmod 755 "$root/home/someone" # some tests switch to another user
  [ "$user" != root ] || home=/root
  mapfile -t kept < <(env | grep -E '^(PIP_|TORCH)' || true)
  in_root env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME="$home" TERM=dumb "${kept[@]}" \
    bash -euc "$(declare -f tests); tests \"\$@\"" - "$system" "$place" "${words[@]}"
fi

#!/bin/sh
# Both images are installed by this script, from what lies in /build: no network is needed.
#   install.sh dependencies    make /opt/venv from the wheels, keeping the base image's own torch where it has one
#   install.sh project         put clusterctl into it, and leave nothing of /build behind
# Plain sh: a base image need not have bash. Python must be there, in the minor version that the wheels were made for.
set -eu
venv=/opt/venv
python=$venv/bin/python

make_environment() {
  # A base image's own torch was built for its CUDA and its drivers: the environment sees it, and pip leaves it alone.
  if python3 -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("torch") is None)'; then
    python3 -m venv --without-pip --system-site-packages $venv
  else
    python3 -m venv --without-pip $venv
  fi
  # Debian's Python has no ensurepip; a wheel of pip is a program.
  install --requirement /build/requirements.txt
  # The container's root is read-only: what is not compiled now would be compiled at every start of every rank.
  $python -m compileall -q -j 0 $venv/lib || true # some packages carry templates that are no Python

  # A login shell resets PATH, and enroot starts one: its last word puts the environment first.
  mkdir -p /etc/profile.d
  echo "PATH=$venv/bin:\$PATH" >/etc/profile.d/zz-venv.sh
}

install() {
  $python "$(echo /build/wheels/pip-*.whl)/pip" --disable-pip-version-check --quiet --no-cache-dir install \
    --no-index --find-links=/build/wheels --no-compile --root-user-action=ignore "$@"
}

case "${1-}" in
dependencies) make_environment ;;
project)
  $python -m pip --disable-pip-version-check --quiet --no-cache-dir install \
    --no-index --no-deps --root-user-action=ignore /build/project/*.whl
  rm -rf /build
  ;;
*)
  echo "usage: install.sh dependencies|project" >&2
  exit 2
  ;;
esac

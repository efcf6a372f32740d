#!/bin/sh
# Installs both images from the files in /build; it needs no network.
#   install.sh dependencies    create /opt/venv from the wheels, and keep the base image's own torch if it has one
#   install.sh project         install clusterctl into it, and remove /build
# Plain sh, because a base image may lack bash. Python must be there, in the minor version that the wheels are for.
set -eu
venv=/opt/venv
python=$venv/bin/python

make_environment() {
  # A base image's own torch was built for its CUDA and drivers, so the environment uses it and pip leaves it alone.
  if python3 -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("torch") is None)'; then
    python3 -m venv --without-pip --system-site-packages $venv
  else
    python3 -m venv --without-pip $venv
  fi
  # Debian's Python has no ensurepip, but a wheel of pip can be executed.
  install --requirement /build/requirements.txt
  # The container's root is read-only: files not compiled now would be compiled at every start of every rank.
  $python -m compileall -q -j 0 $venv/lib || true # some packages contain templates that are not Python

  # enroot starts a login shell, which resets PATH; this file runs last and puts the environment first.
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

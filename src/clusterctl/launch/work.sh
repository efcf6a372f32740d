# Each run has its own working directory (launch/work.sh of clusterctl): a copy of its code, created atomically before
# the first start. Hard links in the snapshot become separate files.
no_work= # a field of host.json if it is missing
make_work() {
  [ ! -d "$run/work" ] || return 0
  drop_copies "$run"/.work.* # left by an attempt that was killed
  local copy=$run/.work.$number problem
  problem=$({ cp -RP --preserve=mode,timestamps --reflink=auto "$run/code/project" "$copy" && chmod -R u+w "$copy" &&
    { mv -T "$copy" "$run/work" || await [ -d "$run/work" ]; }; } 2>&1) && return
  echo "clusterctl: cannot create $run/work: ${problem%%$'\n'*}"
  [ -n "$signal" ] || no_work=', "no_work": true'
  return 73
}
drop_copies() { # incomplete ones
  local copy
  for copy; do
    [ ! -d "$copy" ] || { chmod -R u+w "$copy" && rm -rf "$copy"; }
  done
}

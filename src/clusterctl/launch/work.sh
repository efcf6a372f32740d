# The working directory of the tasks is the run's own (launch/work.sh of clusterctl): a copy of its code, made before its
# first start, whole or not at all. Files that are one in the snapshot (hard links) are two here.
no_work= # a field of host.json, where there is none
make_work() {
  [ ! -d "$run/work" ] || return 0
  drop_copies "$run"/.work.* # of an attempt that was killed meanwhile
  local copy=$run/.work.$number said
  said=$({ cp -RP --preserve=mode,timestamps --reflink=auto "$run/code/project" "$copy" && chmod -R u+w "$copy" &&
    { mv -T "$copy" "$run/work" || await [ -d "$run/work" ]; }; } 2>&1) && return
  echo "clusterctl: cannot make $run/work: ${said%%$'\n'*}"
  [ -n "$signal" ] || no_work=', "no_work": true'
  return 73
}
drop_copies() { # half made ones
  local copy
  for copy; do
    [ ! -d "$copy" ] || { chmod -R u+w "$copy" && rm -rf "$copy"; }
  done
}

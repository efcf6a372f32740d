# Each run has its own working directory (launcher/submission/work.sh of clusterctl): a copy of its code, created atomically before
# the first start. Hard links in the snapshot become separate files.
cctl_no_work= # a field of host.json if it is missing
cctl_make_work() {
  [ ! -d "$cctl_run/work" ] || return 0
  cctl_drop_copies "$cctl_run"/.work.* # left by an attempt that was killed
  local cctl_copy=$cctl_run/.work.$cctl_number cctl_problem
  cctl_problem=$({ cp -RP --preserve=mode,timestamps --reflink=auto "$cctl_run/code/project" "$cctl_copy" &&
    chmod -R u+w "$cctl_copy" &&
    { mv -T "$cctl_copy" "$cctl_run/work" || cctl_await [ -d "$cctl_run/work" ]; }; } 2>&1) && return
  echo "clusterctl: cannot create $cctl_run/work: ${cctl_problem%%$'\n'*}"
  [ -n "$cctl_signal" ] || cctl_no_work=', "no_work": true'
  return 73
}
cctl_drop_copies() { # incomplete ones
  local cctl_copy
  for cctl_copy; do
    [ ! -d "$cctl_copy" ] || { chmod -R u+w "$cctl_copy" && rm -rf "$cctl_copy"; }
  done
}

# sbatch passes on what the submitter's shell exports (launcher/submission/shell.sh of clusterctl): functions named like a command
# used below, and shell options, must not affect this script, nor may those of `setup`. `module` and the like stay:
# `setup` may need them. It may also define srun as a function.
cctl_plain_shell() {
  builtin set +aefkmuvxCET +o pipefail +o posix
  builtin unset -f : '[' break cat cd chmod command compgen continue cp declare echo env eval exec exit export grep kill \
    mapfile mkdir local mv od printf read return rm scontrol set sh shopt sinfo sleep sort stat tail timeout touch tr trap true type \
    umask unset wait wc
  shopt -u dotglob expand_aliases failglob nocasematch nullglob
  unset GLOBIGNORE IFS
}
cctl_plain_shell
unset -f srun
export -n SHELLOPTS BASHOPTS

# Whether nobody else can change these folders, or links to them. They are executed from: this is checked at submission
# and again here, where they are used.
cctl_only_ours() {
  local cctl_found cctl_line IFS=$'\n'
  cctl_found=$(LC_ALL=C stat -c '%u %A' -- "$@") || return
  for cctl_line in $cctl_found; do
    [[ $cctl_line == "$EUID l"* || $cctl_line == "$EUID d"????-??-* ]] || return
  done
}

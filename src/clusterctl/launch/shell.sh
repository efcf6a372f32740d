# sbatch passes on what the submitter's shell exports (launch/shell.sh of clusterctl): functions named like a command
# used below, and shell options, must not affect this script. `module` and the like stay: `setup` may need them.
builtin set +aefkmuvxC +o pipefail +o posix
builtin unset -f : '[' break cat chmod command compgen continue cp echo env eval exec exit export grep kill local mkdir mv od \
  printf read return rm scontrol set sh shopt sleep srun stat timeout touch tr trap true type umask unset wait wc
shopt -u failglob
unset GLOBIGNORE
export -n SHELLOPTS BASHOPTS

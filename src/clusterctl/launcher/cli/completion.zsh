#compdef clusterctl
_clusterctl() {
    local -a answer
    local line="${(j: :)words[1,CURRENT-1]} $PREFIX"
    answer=("${(@f)$(COMP_LINE="$line" _CLUSTERCTL_COMPLETE=zsh clusterctl 2>/dev/null)}")
    if [[ "$answer" == ':file' ]]; then
        _files
    elif [[ "$answer[1]" == *[=.] ]]; then
        compadd -S '' -a answer
    elif [[ -n "$answer" ]]; then
        compadd -a answer
    fi
}
if ! whence compdef >/dev/null; then # before compinit, which defines it
    autoload -Uz compinit && compinit -i
fi
compdef _clusterctl clusterctl

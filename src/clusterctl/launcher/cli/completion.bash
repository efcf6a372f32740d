_clusterctl() {
    local answer
    COMPREPLY=()
    answer=$(COMP_LINE="${COMP_LINE:0:COMP_POINT}" COMP_WORD="$2" _CLUSTERCTL_COMPLETE=bash "$1" 2>/dev/null)
    if [[ $answer == :file ]]; then
        compopt -o default
    elif [[ -n $answer ]]; then
        mapfile -t COMPREPLY <<<"$answer"
        [[ ${COMPREPLY[0]} != *[=.] ]] || compopt -o nospace
    fi
}
complete -o nosort -F _clusterctl clusterctl

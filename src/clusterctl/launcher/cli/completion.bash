_clusterctl() {
    local answer line
    COMPREPLY=()
    answer=$(COMP_LINE="${COMP_LINE:0:COMP_POINT}" COMP_WORD="$2" _CLUSTERCTL_COMPLETE=bash "$1" 2>/dev/null)
    if [[ $answer == :file ]]; then
        _clusterctl_option default
    elif [[ -n $answer ]]; then
        while IFS= read -r line; do COMPREPLY+=("$line"); done <<<"$answer"
        [[ ${COMPREPLY[0]} != *[=.] ]] || _clusterctl_option nospace
    fi
}
_clusterctl_option() { type compopt >/dev/null 2>&1 && compopt -o "$1"; } # not in macOS's bash 3.2
complete -o nosort -F _clusterctl clusterctl 2>/dev/null || complete -o bashdefault -F _clusterctl clusterctl

function __clusterctl_complete
    set -l line (commandline --current-process --cut-at-cursor | string collect)
    set -l answer (env COMP_LINE=$line _CLUSTERCTL_COMPLETE=fish clusterctl 2>/dev/null)
    if test "$answer" = ":file"
        __fish_complete_path (commandline --current-token)
    else
        printf '%s\n' $answer
    end
end
complete --command clusterctl --no-files --arguments '(__clusterctl_complete)'

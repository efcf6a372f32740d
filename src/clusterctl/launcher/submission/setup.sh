# What happens in the lines of `setup` (launcher/submission/setup.sh of clusterctl). A line that fails is recorded with its number and
# code. It ends the attempt if nothing after it can be right: its file, environment or module is missing. `exit` and
# `set -e` end it as well (docs/decisions/programs-and-their-environment.md).
cctl_flaws= # the first lines that failed, in JSON
cctl_line=0 cctl_doing='' # the command that runs
cctl_earlier_line=0 cctl_earlier='' # the one before
cctl_complete=
cctl_last_line=${cctl_setup//[!$'\n']/}
cctl_last_line=${#cctl_last_line}
cctl_first=0 # the line of the script with the `eval`, from which LINENO counts
cctl_watch_setup() {
  trap 'cctl_ended_in_setup "$?"' EXIT
  trap 'cctl_has_failed "$?" "${#BASH_SOURCE[@]}" "$BASH_COMMAND"' ERR
  trap 'cctl_begins "$?" "${#BASH_SOURCE[@]}" "$((LINENO - cctl_first))" "$BASH_COMMAND"' DEBUG
}
# The lines may have redefined any command, and set any option: this uses the shell's own.
cctl_begins() { # code of the last command; depth, line and text of the next one
  [[ $2 -eq 1 && $3 -gt 0 ]] || builtin return 0 # within a function or a file, or within this script
  # If commands are joined by &&, bash tells of a failure only for the last one.
  if [[ $1 -ne 0 && $3 -ne $cctl_line ]] && cctl_is_vital "$1" "$cctl_doing"; then
    cctl_find_line
    [[ $REPLY != *'&&'* || $REPLY == *'||'* || $REPLY =~ ^[[:space:]]*(if|elif|while|until|!)[[:space:]] ]] ||
      { cctl_note_flaw "$1" && builtin exit "$1"; }
  fi
  cctl_earlier_line=$cctl_line cctl_earlier=$cctl_doing cctl_line=$3 cctl_doing=$4
}
cctl_has_failed() { # code, depth, and the last command, which is one of a function if the line calls a function
  [[ $2 -eq 1 ]] || builtin return 0
  # bash runs the DEBUG trap for the ERR trap, too.
  [[ $cctl_doing != "$3" || $cctl_line -ne $cctl_earlier_line ]] || cctl_doing=$cctl_earlier
  if cctl_is_vital "$1" "$cctl_doing"; then cctl_note_flaw "$1" && builtin exit "$1"; fi
  # A file that exists, such as ~/.bashrc, returns the code of its last command.
  [[ $1 -eq 1 && ($cctl_doing == "source "* || $cctl_doing == ". "*) ]] || cctl_note_flaw "$1"
}
cctl_note_flaw() { # code
  [[ $cctl_line -eq 0 || $cctl_line -gt $cctl_last_line || $cctl_flaws == *"\"line\": $cctl_line,"* ||
    ${#cctl_flaws} -gt 120 ]] || cctl_flaws+="${cctl_flaws:+, }{\"line\": $cctl_line, \"code\": $1}"
}
cctl_is_vital() { # code, command: whether this failure makes everything after it wrong
  case $2 in
    "conda activate "* | "mamba activate "* | "micromamba activate "*) ;;
    "module load "* | "module add "* | "module swap "* | "module switch "* | "module restore "*) ;;
    "ml load "* | "ml add "* | "ml swap "*) ;;
    "conda "* | "mamba "* | "micromamba "* | "module "* | "ml "*) [[ $1 -eq 127 ]] ;;
    "source "* | ". "*) [[ $1 -eq 1 && $2 != *[\`\(]* ]] && cctl_is_missing "${2#* }" ;; # expanding it runs nothing
    *) builtin return 1 ;;
  esac
}
cctl_is_missing() { # the words of a `source`: whether bash finds no such file
  cctl_words=()
  builtin eval "cctl_words=(${1%%[<>]*})" 2>/dev/null
  if [[ -z ${cctl_words[0]} || -e ${cctl_words[0]} ]]; then builtin return 1; fi
  if [[ ${cctl_words[0]} == */* ]]; then builtin return 0; fi
  builtin local IFS=:
  for cctl_place in $PATH; do
    if [[ -e $cctl_place/${cctl_words[0]} ]]; then builtin return 1; fi
  done
}
cctl_find_line() { # the text of the current line, in REPLY
  REPLY=$cctl_setup
  for ((cctl_count = 0; cctl_count < cctl_line; cctl_count++)); do REPLY=${REPLY#*$'\n'}; done
  REPLY=${REPLY%%$'\n'*}
}
cctl_setup_is_over() {
  trap - DEBUG ERR
  # A syntax error, such as a quote that is never closed, hides the rest.
  [ -n "$cctl_complete" ] || { cctl_line=0 && cctl_ended_in_setup 2; }
  [[ $(trap -p EXIT) != *cctl_* ]] || trap - EXIT
}
cctl_ended_in_setup() { # exit code
  cctl_plain_shell
  trap - DEBUG ERR EXIT
  cctl_code=$1
  [ "$cctl_code" -ne 0 ] || cctl_code=1 # the run has not finished
  cctl_moment_of cctl_end
  cctl_record host.json \
    ", \"end\": $cctl_end, \"exit_code\": $cctl_code, \"signal\": \"$cctl_signal\", \"setup_ended\": $cctl_line"
  [ "${#cctl_notifier[@]}" -eq 0 ] || timeout -k 1 9 "${cctl_notifier[@]}" </dev/null || true
  cctl_drop_successor
  exit "$cctl_code"
}

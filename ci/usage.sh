# Sourced by the scripts beside it. Each begins with a comment that says what it is for, and how it is called.

# Shows that comment.
usage() { sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"; }

# `takes WORDS "$@"` ends the script with its comment where --help is among the arguments, and with 2 and one sentence
# where one of them is none of the words.
takes() {
    local words=$1 word
    shift
    for word in "$@"; do
        case $word in -h | --help) usage && exit ;; esac
        if [ -z "$word" ] || [[ " $words " != *" $word "* ]]; then
            echo "${0##*/}: '$word' is no argument of it: give ${words:-none}, or --help, which says what it does." >&2
            exit 2
        fi
    done
}

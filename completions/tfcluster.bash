_tfcluster_completion() {
    local IFS=$'\n'
    local type value

    COMPREPLY=()
    while IFS=',' read -r type value; do
        if [[ $type == 'dir' ]]; then
            compopt -o dirnames
        elif [[ $type == 'file' ]]; then
            compopt -o default
        elif [[ $type == 'plain' ]]; then
            COMPREPLY+=("$value")
        fi
    done < <(env COMP_LINE="${COMP_LINE:0:COMP_POINT}" BREAKS="$COMP_WORDBREAKS" _TFCLUSTER_COMPLETE=bash_complete "$1")
}

complete -o nosort -F _tfcluster_completion tfcluster

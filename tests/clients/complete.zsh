# Prints what zsh offers for an unfinished line: zsh -f complete.zsh PLACE DIRECTORY LINE
# PLACE has the completion. Completion needs a terminal, so a second zsh runs this file on a pseudo-terminal of its own.
if [[ -o interactive ]]; then
    fpath=($place $fpath)
    autoload -Uz compinit
    compinit -u -D
    compadd() {
        # With these options the caller asks which words match, and offers none.
        if (( ${argv[1,(i)-(|-)][(I)-[OAD]]} )); then
            builtin compadd "$@"
            return
        fi
        local -a offered
        builtin compadd -A offered "$@"
        (( $#offered )) && print -rl -- "<"${^offered}">"
        builtin compadd "$@"
    }
    complete-aloud() {
        print
        zle complete-word-aloud
        print '<''END>'
    }
    zle -C complete-word-aloud complete-word _main_complete
    zle -N complete-aloud
    bindkey '^I' complete-aloud
    cd -- $directory
    print '<''READY>'
    return
fi
zmodload zsh/zpty
zpty terminal zsh -f -i
zpty -w terminal "place=${(q)1} directory=${(q)2} PS1= PS2=; source ${(q)0:A}"
zpty -r terminal output '*<READY>*'
zpty -w -n terminal "$3"$'\t'
zpty -r terminal output '*<END>*'
zpty -d terminal
for found in ${(f)output//$'\r'/}; do
    [[ $found == \<*\> && $found != \<END\> ]] && print -r -- ${${found#<}%>}
done
true

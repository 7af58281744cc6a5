# Every command of the table answers -h, is in the list of commands and in docs/commands.md.
# SPDX-License-Identifier: MIT
"$ALLOT" help >overview || echo "help: exit $?"
for form in -h --help; do
    "$ALLOT" "$form" | cmp - overview || echo "$form differs from help"
done
"$ALLOT" >nothing 2>usage
echo "without a command: exit $?"
cmp usage overview
[ ! -s nothing ] || echo 'without a command: something on stdout'
"$ALLOT" --version | grep -Ex 'allot [0-9]+\.[0-9]+\.[0-9]+' >version || echo 'no version'

commands=$(sed -n '/^Commands:/,/^$/s/^  \([a-z]\{1,\}\) .*/\1/p' overview)
echo $commands
for command in $commands; do
    for form in "$command -h" "$command --help" "help $command"; do
        # shellcheck disable=SC2086
        "$ALLOT" $form >"$command.help" || echo "allot $form: exit $?"
        head -n 1 "$command.help" | grep -q "^usage: allot $command " || echo "allot $form: no usage line"
        for option in --json --quiet --threads --archive --help; do
            grep -q -- "$option" "$command.help" || echo "allot $form: no $option"
        done
        awk -v c="$form" 'length($0) > 80 { print c ": a line of " length($0) }' "$command.help"
    done
    ! grep -q -- --types "$command.help" || tr -s ' \n' ' ' <"$command.help" |
        grep -q "own type only if the list names it" || echo "$command: --types does not tell of a tensor's own type"
    grep -qx "## $command" "$TESTS/../docs/commands.md" || echo "docs/commands.md does not know $command"
    "$ALLOT" "$command" --no-such-option >/dev/null 2>&1
    [ $? = 2 ] || echo "$command: an unknown option is not a usage error"
done
"$ALLOT" help --markdown | diff "$TESTS/../docs/commands.md" - && echo 'docs/commands.md agrees'

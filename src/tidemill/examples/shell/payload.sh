#!/bin/sh
# A range payload in plain POSIX shell: one text file per range. See docs/range-protocol.md.
set -eu

exec 3<&"${TIDEMILL_IN:-3}" 4>&"${TIDEMILL_OUT:-4}"

# ... slow set-up goes here ...
echo ready >&4
echo next >&4
while read -r word first count seed <&3; do
    case $word in
    end) exit 0 ;;
    range) ;;
    *)
        echo "expected \`range\` or \`end\`, got \`$word\`" >&2
        exit 1
        ;;
    esac
    event=$first
    while [ "$event" -lt $((first + count)) ]; do
        echo "$event $((seed + event - first))"
        event=$((event + 1))
    done >"out-$first.txt"
    # one `done` line ends the range; the file is the pilot's from now on
    printf 'done %s %s text=out-%s.txt\nnext\n' "$first" "$count" "$first" >&4
done
echo "the pilot closed the protocol without \`end\`" >&2
exit 1

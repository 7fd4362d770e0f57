#!/usr/bin/env bash
# The program ends well, trains, and both ranks agree.
set -euo pipefail
output=$("$1")
echo "$output"
grep -q '^step 10: loss ' <<<"$output"
[[ $(tail -n 1 <<<"$output") == "parameters equal on 2 ranks" ]]
first=$(sed -n 's/^step 1: loss //p' <<<"$output")
last=$(sed -n 's/^step 10: loss //p' <<<"$output")
awk -v first="$first" -v last="$last" 'BEGIN { exit !(last < first) }' || { echo "the loss did not fall: $first, $last" >&2; exit 1; }

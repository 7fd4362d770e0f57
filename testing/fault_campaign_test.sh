#!/usr/bin/env bash
# Twenty runs, and what the campaign refuses.
set -euo pipefail
campaign=$1
"$campaign" --help | grep -q -- --runs=N
if "$campaign" --runs=0 2>/dev/null; then echo "--runs=0 was taken"; exit 1; fi
if "$campaign" --kinds=thunder 2>/dev/null; then echo "--kinds=thunder was taken"; exit 1; fi
output=$("$campaign" --runs=20 --seed=1 --jobs=4 --json)
echo "$output"
tail -n 1 <<<"$output" | grep -qE '^\{"runs":20,"faults":\{.*"kill":[0-9]+.*\},"hangs":0,"orphans":0,"wrong_results":0,"unnamed_causes":0\}$'
# The counts of the kinds sum to the runs.
numbers=$(tail -n 1 <<<"$output" | sed 's/.*"faults":{\([^}]*\)}.*/\1/' | grep -oE '[0-9]+' | paste -sd+)
[[ $((numbers)) == 20 ]] || { echo "the kinds sum to $((numbers))"; exit 1; }

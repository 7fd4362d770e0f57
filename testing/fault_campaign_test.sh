#!/usr/bin/env bash
# Twenty runs, what the campaign refuses, and what it leaves out where it has no rights.
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

# Without the rights to mount, and to make network namespaces.
unprivileged=(unshare --user)
"${unprivileged[@]}" true 2>/dev/null || unprivileged=()
if ((${#unprivileged[@]} == 0 && EUID == 0)); then
  echo "SKIPPED: what is left out without root: this machine has no user namespaces"
  exit 0
fi
for kind in link_down full_disk; do
  status=0
  error=$("${unprivileged[@]}" "$campaign" --kinds=kill,$kind 2>&1 >/dev/null) || status=$?
  [[ $status == 2 && $error == *"$kind is left out: it needs root"* ]] || { echo "$kind without root: status $status, $error"; exit 1; }
done
output=$("${unprivileged[@]}" "$campaign" --runs=2 --seed=3 --jobs=2 --json 2>&1)
for kind in link_down full_disk; do
  [[ $output == *"$kind is left out: it needs root"* ]] || { echo "$output"; exit 1; }
done
tail -n 1 <<<"$output" | grep -qE '^\{"runs":2,"faults":\{("[a-z_]+":1,"[a-z_]+":1|"[a-z_]+":2)\},"hangs":0,"orphans":0,"wrong_results":0,"unnamed_causes":0\}$'

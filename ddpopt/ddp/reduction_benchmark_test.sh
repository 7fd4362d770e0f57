#!/bin/bash
# The benchmark runs and gives every figure; what they are is not tested.
set -euo pipefail
last=$("$1" --parameters=20 --elements=4 --steps=2 --json | tail -n 1)
for figure in '"parameters":20' '"elements":4' '"ranks":2' '"step_s":[0-9.e-]*[1-9]' '"bucketed_s":[0-9.e-]*[1-9]' '"ratio":' '"one_by_one_s":'; do
  grep -Eq "$figure" <<< "$last" || { echo "no figure $figure in: $last"; exit 1; }
done
if "$1" --steps=0 2> /dev/null; then
  echo "a bad flag is taken"
  exit 1
fi

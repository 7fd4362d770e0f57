#!/bin/bash
# The benchmark runs and gives every figure; what they are is not tested.
set -euo pipefail
out=$("$1" --json --repeat=1 --layers=2 --width=64 --vocab=101 --tokens=16)
last=$(tail -n 1 <<< "$out")
for key in real_add_ns guard_ns piece_us piece_eager_us allocs_per_step ops_per_step gpt2_cold_compile_ms gpt2_step_ms \
    gpt2_eager_step_ms gpt2_peak_mb_eager gpt2_peak_mb_min_cut gpt2_peak_mb_predicted gradient_targets_ratio; do
  grep -Eq "\"$key\":[0-9.e+]*[1-9]" <<< "$last" || { echo "no figure $key in: $last"; exit 1; }
done
if "$1" --nonsense 2> /dev/null; then
  echo "an unknown argument is taken"
  exit 1
fi

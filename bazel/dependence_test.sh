#!/usr/bin/env bash
# dependence_test.sh DEPS TARGET ALLOWED...: every label in DEPS must be of TARGET's package, of third_party, or allowed.
set -euo pipefail
deps=$1 target=$2
shift 2
own=${target#//}
own=${own%%:*}
bad=0 seen=0
while read -r label; do
  [[ "$label" == //* ]] || continue
  [[ "$label" == //bazel:sanitizer_defaults ]] && continue  # of programs, with --config=asan and the like alone
  seen=$((seen + 1))
  name=${label#//}
  package=${name%%:*}
  [[ "$package" == "$own" || "$package" == third_party/* ]] && continue
  allowed=no
  for entry in "$@"; do
    [[ "$entry" == "$package" || "$entry" == "$name" ]] && allowed=yes
  done
  if [[ $allowed == no ]]; then
    echo "$target depends on $label, which the design does not allow; allowed are: $*"
    bad=1
  fi
done <"$deps"
[[ $seen -gt 0 ]] || { echo "no dependencies were read from $deps"; exit 1; }
exit $bad

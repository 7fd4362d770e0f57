#!/usr/bin/env bash
# libddpopt.so defines names of ours alone: one of gloo, glog, abseil or LibTorch would displace the user's own.
set -euo pipefail
library=$1
symbols=$(nm -DC --defined-only "$library" | cut -d' ' -f2-)
[[ "$symbols" == *"T ddpopt::InitProcessGroup("* ]] || { echo "$library doesn't show ddpopt::InitProcessGroup"; exit 1; }
# Local names (lower case) displace nobody's: the linker lists one for a thread-local variable of an inline function of c10d.
# A weak copy of a string's member, which libtorch_cpu.so looks for too, is exported whatever the version script says; every program
# that has std::string has it.
foreign=$(grep -vE '^[bdrt] |^[A-Za-z] ((typeinfo|typeinfo name|vtable|VTT) for |(non-)?virtual thunk to )?ddpopt::|^W std::__cxx11::basic_string<' <<<"$symbols" || true)
[[ -z "$foreign" ]] || { echo "$library defines names that are not ours:"; head -n 20 <<<"$foreign"; exit 1; }
# Of LibTorch's Reducer this alone is used: what would change the buckets (rebuild_buckets), or synchronise by rules that only Python's wrapper
# completes (set_static_graph), is not. FrozenReducer brings its own.
used=$(nm -DC --undefined-only "$library" | sed -nE 's/^ *U c10d::Reducer::(~?[A-Za-z_0-9]+)\(.*/\1/p' | sort -u | xargs)
expected="mark_variable_ready prepare_for_backward prepare_for_forward ~Reducer Reducer register_comm_hook"
[[ "$(tr ' ' '\n' <<<"$used" | LC_ALL=C sort)" == "$(tr ' ' '\n' <<<"$expected" | LC_ALL=C sort)" ]] ||
  { echo "$library uses other functions of c10d::Reducer: $used; expected are: $expected"; exit 1; }
# Nothing that only lies on the machine that built it.
if readelf -d "$library" | grep -E 'R(UN)?PATH'; then echo "$library carries a run path"; exit 1; fi

#!/usr/bin/env bash
# Two machines, which are network namespaces: a run over both, the interface that is chosen, and what can be wrong with it.
set -u
launch=$1 program=$2
a=ddpopt-launch-a-$$ b=ddpopt-launch-b-$$
folder=$(mktemp -d)
trap 'ip netns del $a 2>/dev/null; ip netns del $b 2>/dev/null; rm -rf "$folder"' EXIT
fail() { echo "launch_test: $*"; tail -n 50 "$folder"/out*; exit 1; }

"$launch" --help | grep -q -- --node_rank || fail "--help"
"$launch" --nproc_per_node=0 true 2>&1 | grep -q 'launch: --nproc_per_node=0 is outside' || fail "no ranks"
# Nobody at the master's address.
RANK=1 WORLD_SIZE=2 LOCAL_RANK=0 MASTER_ADDR=no.such.host.invalid MASTER_PORT=29500 "$program" 2>"$folder/out" && fail "an unknown host"
grep -q "MASTER_ADDR=no.such.host.invalid doesn't resolve to an address" "$folder/out" || fail "an unknown host"

if ! { ip netns add $a && ip netns add $b && ip -n $a link add link0 type veth peer name link0 netns $b; } 2>"$folder/out"; then
  echo "SKIPPED: two machines need root and network namespaces (ip netns, veth): $(cat "$folder/out")"
  exit 0
fi
for side in "$a 10.78.0.1" "$b 10.78.0.2"; do
  set -- $side
  ip -n $1 addr add $2/24 dev link0 && ip -n $1 link set lo up && ip -n $1 link set link0 up || fail "the link"
done
restarts=
node() {  # NUMBER NAME [ENVIRONMENT...] -- FLAGS...
  local number=$1 name=$2
  shift 2
  local variables=()
  while [[ $1 != -- ]]; do variables+=("$1"); shift; done
  shift
  ip netns exec "$name" env "${variables[@]}" "$launch" --nproc_per_node=2 --nnodes=2 --node_rank=$number --master_addr=10.78.0.1 --master_port=29455 --timeout=90 \
    $restarts "$program" "$@" >"$folder/out$number" 2>&1
}
train="--folder=$folder/checkpoints --out=$folder/parameters --steps=3"
mkdir -p "$folder/checkpoints"

node 0 $a -- $train & first=$!
node 1 $b -- $train || fail "node 1"
wait $first || fail "node 0"
[[ -s $folder/parameters ]] || fail "no parameters"
grep -q 'ddpopt: rank 0 of 4 uses interface link0 (10.78.0.1)' "$folder/out0" || fail "the interface of node 0"
grep -q 'ddpopt: rank 2 of 4 uses interface link0 (10.78.0.2)' "$folder/out1" || fail "the interface of node 1"
# The same model as four ranks of one machine train.
mkdir -p "$folder/one"
"$launch" --nproc_per_node=4 "$program" --folder=$folder/one --out=$folder/expected --steps=3 >"$folder/out2" 2>&1 || fail "four ranks"
cmp -s "$folder/parameters" "$folder/expected" || fail "two machines trained something else than one"

# The second machine has been started twice more when the first one is still in its first start.
rm -rf "$folder/checkpoints"/* "$folder/parameters"
cat >"$folder/late" <<EOF
#!/bin/sh
test \$GROUP_RANK = 1 && test \$TORCHELASTIC_RESTART_COUNT -lt 2 && exit 7
exec "$(realpath "$program")" "\$@"
EOF
chmod +x "$folder/late"
of_program=$program program=$folder/late restarts=--max_restarts=2
node 0 $a -- $train & first=$!
node 1 $b -- $train || fail "node 1 after two restarts"
wait $first || fail "node 0 with one that was restarted"
grep -q 'launcher: starting all ranks again' "$folder/out0" && fail "node 0 was restarted too"
grep -q 'launcher: starting all ranks again (restart 2 of 2)' "$folder/out1" || fail "node 1 was not restarted"
cmp -s "$folder/parameters" "$folder/expected" || fail "what was trained after restarts"
program=$of_program restarts=

rm -rf "$folder/checkpoints"/*
node 0 $a GLOO_SOCKET_IFNAME=nosuch0 -- $train & first=$!
node 1 $b GLOO_SOCKET_IFNAME=link0 -- $train && fail "an interface that isn't there was taken"
wait $first && fail "an interface that isn't there was taken"
grep -q "GLOO_SOCKET_IFNAME=nosuch0: this machine has no interface 'nosuch0'; it has link0, lo" "$folder/out0" || fail "an interface that isn't there"
grep -qE "(can't reach rank 0's store at 10.78.0.1:29455|rank 0 has not come)" "$folder/out1" || fail "a master that isn't there"

node 0 $a GLOO_SOCKET_IFNAME=lo -- $train & first=$!
node 1 $b -- $train && fail "loopback was taken"
wait $first && fail "loopback was taken"
grep -q 'a loopback interface reaches no other machine; GLOO_SOCKET_IFNAME chooses another' "$folder/out0" "$folder/out1" || fail "loopback on one side"
echo PASSED

#!/usr/bin/env bash
# What bazelw says where it can't help: over a system folder and commands of our own making.
set -euo pipefail
bazelw="$PWD/bazelw"
tmp=$(mktemp -d "${TEST_TMPDIR:-/tmp}/bazelw.XXXXXX")
mkdir -p "$tmp/system/etc" "$tmp/system/var/lib/dpkg/info" "$tmp/bin" "$tmp/cache"
for tool in bash cat dirname grep head kill mktemp rm sed sleep sort tail tr env cut uname sha256sum; do ln -s "$(command -v $tool)" "$tmp/bin/$tool"; done

command_is() { printf '#!/bin/bash\n%s\n' "$2" >"$tmp/bin/$1"; chmod +x "$tmp/bin/$1"; }
run() { BAZELW_SYSTEM="$tmp/system" PATH="$tmp/bin" XDG_CACHE_HOME="$tmp/cache" TMPDIR="$tmp" LIBTORCH_HOME="$home" "$bazelw" "$@" 2>&1 </dev/null; }
home=/somewhere
refused() {  # EXPECTED_TEXT...
  if out=$(run version); then echo "bazelw went on: $out"; exit 1; fi
  for text in "$@"; do [[ "$out" == *"$text"* ]] || { echo "expected \"$text\" in: $out"; exit 1; }; done
}
os() { printf "%s\n" "$@" >"$tmp/system/etc/os-release"; }

command_is id 'echo 1000'
os ID=ubuntu VERSION_ID=24.04 'PRETTY_NAME="Ubuntu 24.04"'
command_is apt-get 'exit 0'
refused "Ubuntu 24.04" "Debian 12 only" "DDPOPT_SKIP_PACKAGES=1" "libgloo-dev"
os ID=debian VERSION_ID=12 'PRETTY_NAME="Debian GNU/Linux 12"'
refused "not root and there is no sudo" "apt-get install -y bazel-bootstrap"
command_is sudo 'exit 1'
refused "sudo asks for a password"
command_is id 'echo 0'
command_is apt-get 'echo "Err: Could not resolve host"; exit 100'
refused "no network, or the package mirror can't be reached"
command_is apt-get 'echo "E: Could not get lock /var/lib/dpkg/lock"; exit 100'
refused "another package manager is at work"
command_is apt-get 'exit 0'
refused "there is no bazel in PATH"

# All there: bazel gets the arguments and its exit status is bazelw's.
command_is bazel 'echo "bazel: $*"; exit 3'
rc=0
out=$(run test //...) || rc=$?
[[ $rc -eq 3 && "$out" == *"bazel: test //..."* ]] || { echo "rc $rc: $out"; exit 1; }
# Packages that someone else saw to are not asked for.
command_is apt-get 'echo asked; exit 100'
out=$(DDPOPT_SKIP_PACKAGES=1 run info) || rc=$?
[[ "$out" == *"bazel: info"* && "$out" != *asked* ]] || { echo "$out"; exit 1; }
# No pip, no LibTorch: said before bazel starts.
home=
command_is apt-get 'exit 0'
if out=$(run info); then echo "went on without LibTorch: $out"; exit 1; fi
[[ "$out" == *"no pip found"*"LIBTORCH_HOME"* && "$out" != *"bazel: info"* ]] || { echo "$out"; exit 1; }

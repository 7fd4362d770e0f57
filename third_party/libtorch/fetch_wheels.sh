# Sourced by the scripts that unpack third-party libraries from wheels.
#
#   fetch_wheels LIST DESTINATION PATTERN...   unpacks what matches the patterns from each wheel of LIST (lines of requirement, wheel tag,
#                                              bytes, sha256) into DESTINATION, which appears complete or not at all.
# The caller defines fail(), which prints its arguments and exits.

# "118 of 539 MB" while pip works: it says nothing itself when its output is no terminal.
_show_progress() {  # FOLDER BYTES NAME
  local last=-1 now step=50000000 pause=2
  [[ -t 2 ]] && { step=1 pause=0.3; }
  while sleep $pause; do
    now=$(du -sb "$1" 2>/dev/null | cut -f1) || continue
    [[ $now -lt $2 ]] || now=$2  # pip holds it twice for a moment
    if [[ $((now / step)) -gt $((last / step)) || $last -lt 0 ]]; then
      if [[ -t 2 ]]; then printf '\r  %s: %d of %d MB ' "$3" $((now / 1000000)) $(($2 / 1000000)) >&2
      else echo "  $3: $((now / 1000000)) of $(($2 / 1000000)) MB" >&2; fi
      last=$now
    fi
  done
}

fetch_wheels() {
  local list=$1 destination=$2
  shift 2
  local pip=() candidate
  for candidate in pip3 pip "python3 -m pip"; do
    if $candidate --version >/dev/null 2>&1; then pip=($candidate); break; fi
  done
  [[ ${#pip[@]} -gt 0 ]] || fail "no pip found to fetch wheels with; install python3-pip, or set LIBTORCH_HOME to an unpacked LibTorch"
  command -v unzip >/dev/null || fail "unzip is missing; install it, or set LIBTORCH_HOME to an unpacked LibTorch"

  local parent
  parent=$(dirname "$destination")
  mkdir -p "$parent" 2>/dev/null || fail "can't make the folder $parent (set XDG_CACHE_HOME to a folder that can be written)"
  find "$parent" -maxdepth 1 -name "unpack.*" -mmin +1440 -exec rm -rf {} + 2>/dev/null || true  # of a run that was killed
  progress=
  work=$(mktemp -d "$parent/unpack.XXXXXX") || fail "can't write to $parent (set XDG_CACHE_HOME to a folder that can be written)"
  # Not local, since the trap sees them after this function too. A background shell that is killed before it has dropped its traps runs them.
  owner=$BASHPID
  trap '[[ $BASHPID != "$owner" ]] || { [[ -z "$progress" ]] || kill "$progress" 2>/dev/null || true; rm -rf "$work"; }' EXIT

  local requirement tag bytes hash got wheel rc
  while read -r requirement tag bytes hash; do
    [[ -z "$requirement" || "$requirement" == \#* ]] && continue
    mkdir -p "$work/wheel/tmp"
    _show_progress "$work/wheel" "$bytes" "$requirement" &
    progress=$!
    rc=0
    TMPDIR="$work/wheel/tmp" "${pip[@]}" download -q --no-deps --no-cache-dir --only-binary=:all: --disable-pip-version-check --retries 2 --timeout 20 \
      --python-version 3.11 --platform "$tag" -d "$work/wheel" "$requirement" >"$work/log" 2>&1 || rc=$?
    kill "$progress" 2>/dev/null || true
    wait "$progress" 2>/dev/null || true
    progress=
    [[ -t 2 ]] && printf '\r\033[K' >&2
    if [[ $rc -ne 0 ]]; then
      tail -n 5 "$work/log" >&2
      if grep -qiE 'connection|resolve|timed out|unreachable' "$work/log"; then
        fail "could not fetch $requirement: no network, or pip's index can't be reached; set LIBTORCH_HOME to an unpacked LibTorch to build without one"
      elif grep -qi 'no space left' "$work/log"; then
        fail "could not fetch $requirement: the disk of $parent is full"
      fi
      fail "could not fetch $requirement (pip's last lines are above)"
    fi
    wheel=$(echo "$work"/wheel/*.whl)
    got=$(sha256sum "$wheel" | cut -d' ' -f1)
    [[ "$got" == "$hash" ]] || fail "$requirement has sha256 $got, expected $hash"
    echo "  $requirement: fetched, unpacking" >&2
    # unzip's 11 only says that one of the patterns matched nothing in this wheel.
    rc=0
    unzip -q "$wheel" "$@" -d "$work/tree" 2>/dev/null || rc=$?
    [[ $rc -eq 0 || $rc -eq 11 ]] || fail "could not unpack $requirement (unzip: $rc; is the disk of $parent full?)"
    rm -rf "$work/wheel"
  done <"$list"
  # Another process may have been as fast; then its result stands.
  mv -T "$work/tree" "$destination" 2>/dev/null || [[ -d "$destination" ]] || fail "could not move the unpacked wheels to $destination"
}

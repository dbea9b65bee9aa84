#!/usr/bin/env bash
# The two ends of `make release`: only what is committed is released, and only what runs where nothing else is installed.
#   scripts/release.sh check      refuses a tree with changes or files that no commit has
#   scripts/release.sh try DIST   installs every wheel of DIST with tidemill[all] in a new environment, other packages from
#                                 the registry, and runs the quick start there
set -euo pipefail
cd "$(dirname "$0")/.."

fail() {
  printf 'release: %s\n' "$1" >&2
  [ $# -lt 2 ] || printf 'hint: %s\n' "$2" >&2
  exit 2
}

check() {
  local changes
  changes=$(git status --porcelain) || fail 'this is not a checkout of git'
  [ -z "$changes" ] || fail "the tree is not what its last commit says:
$changes" 'commit it, or put it away'
}

try() {
  local dist place wheels node
  dist=$(cd "$1" && pwd)
  wheels=("$dist"/tidemill-*.whl)
  node=("$dist"/tidemill_node-*.whl)
  [ -f "${wheels[0]}" ] && [ -f "${node[0]}" ] || fail "there are no wheels in $1" '`make dist` builds them'
  place=$(mktemp -d "${TMPDIR:-/tmp}/tidemill-release.XXXXXX")
  trap 'rm -rf "$place"' EXIT
  "${PYTHON:-python3}" -m venv "$place/venv"
  # wheels by their paths: the registry may have others of the same name
  env -u PYTHONPATH "$place/venv/bin/python" -m pip install --quiet --disable-pip-version-check \
    "${wheels[0]}[all,examples]" $(find "$dist" -name 'tidemill_*.whl' | sort)
  mkdir "$place/home"
  cd "$place/home"
  clean=(env -i "PATH=$place/venv/bin:/usr/bin:/bin" "HOME=$place/home" "TMPDIR=${TMPDIR:-/tmp}" LANG=C.UTF-8)
  "${clean[@]}" tidemill --version --verbose
  "${clean[@]}" tidemill quickstart --events 500
  printf 'release: the wheels in %s run the quick start\n' "$dist" >&2
}

case "${1:-}" in
  check) check ;;
  try) try "${2:?the folder of the wheels}" ;;
  *) fail 'say `check`, or `try DIST`' ;;
esac

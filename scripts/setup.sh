#!/usr/bin/env bash
# Does all the set-up of a checkout: Debian packages (as root), a Rust toolchain where none suffices, uv in .uv, the
# environment .venv with tidemill and the static tidemill-node. Quick when nothing has changed; several at once wait for
# each other.
#   scripts/setup.sh          everything, for tests and benches too
#   scripts/setup.sh run      what `make quickstart` needs
#   scripts/setup.sh s3       the S3 server of tests and benches into .tools
#   scripts/setup.sh node     only build tidemill-node anew, where its sources have changed
set -euo pipefail
cd "$(dirname "$0")/.."

UV_WANTED='uv>=0.9,<0.14' # tried with 0.13.8
RUST_MINOR_MIN=85         # rust-version in Cargo.toml

say() { printf 'setup: %s\n' "$*" >&2; }
fail() {
  printf 'setup: %s\n' "$1" >&2
  [ $# -lt 2 ] || printf 'hint: %s\n' "$2" >&2
  exit 2
}

# A download may hang or break off: each attempt has a time limit, and there are three.
try_thrice() {
  local limit_s=$1 attempt
  shift
  for attempt in 1 2 3; do
    if timeout --foreground --kill-after=10 "$limit_s" "$@"; then return 0; fi
    say "attempt $attempt of 3 failed: $1 $2 ..."
  done
  return 1
}

find_python() {
  local candidate
  command -v python3 >/dev/null || ! may_install || apt_install python3 python3-venv
  for candidate in "${PYTHON:-}" python3 python3.13 python3.12 python3.11; do
    if [ -n "$candidate" ] && "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      PYTHON=$("$candidate" -c 'import sys; print(sys.executable)')
      export PYTHON
      return 0
    fi
  done
  fail 'no Python 3.11 or later found' 'install python3 (Debian 12 has 3.11), or set PYTHON to one'
}

rust_minor() { # of the rustc that PATH has; 0 without one
  local minor
  minor=$(rustc --version 2>/dev/null | sed -n 's/^rustc 1\.\([0-9]*\)\..*/\1/p')
  printf '%s' "${minor:-0}"
}

rust_suffices() { # $1 = all: `make check` needs rustfmt and clippy too
  command -v cargo >/dev/null && [ "$(rust_minor)" -ge "$RUST_MINOR_MIN" ] || return 1
  [ "$1" != all ] || { cargo fmt --version && cargo clippy --version; } >/dev/null 2>&1
}

# Debian 12 has a toolchain of last year beside that of its release: `-web`, kept up to date for browsers.
debian_rust() { # the names of the packages that suffice; nothing where the release has none
  local cargo minor
  for cargo in cargo-web cargo; do
    minor=$(apt-cache policy "$cargo" | sed -n 's/^ *Candidate: 1\.\([0-9]*\)\..*/\1/p')
    if [ "${minor:-0}" -ge "$RUST_MINOR_MIN" ]; then
      case $1-$cargo in
        all-cargo-web) echo cargo-web rustc-web rustfmt-web rust-web-clippy ;;
        all-cargo) echo cargo rustc rustfmt rust-clippy ;;
        *-cargo-web) echo cargo-web rustc-web ;;
        *) echo cargo rustc ;;
      esac
      return 0
    fi
  done
}

find_rust() {
  local packages=()
  # shellcheck disable=SC1091
  command -v cargo >/dev/null || { [ ! -r "$HOME/.cargo/env" ] || . "$HOME/.cargo/env"; }
  # a toolchain of rustup's is the user's own: Debian's packages conflict with it
  if ! rust_suffices "$1" && ! command -v rustup >/dev/null && may_install; then
    apt_update
    read -ra packages <<<"$(debian_rust "$1")"
    [ ${#packages[@]} -eq 0 ] || apt_install "${packages[@]}"
  fi
  rust_suffices "$1" || fail "no Rust toolchain found that suffices: 1.$RUST_MINOR_MIN or later$([ "$1" != all ] || echo ', with rustfmt and clippy')" \
    'install it with rustup, or update it: rustup update; rustup component add rustfmt clippy'
  HOST=$(rustc -vV | sed -n 's/^host: //p')
}

missing_packages() { # $1 = run: what only tests need is left out
  local package test_command
  while read -r package test_command; do
    [ "$1 $package $test_command" != 'run # Tests and benches:' ] || break
    case $package in '' | '#'*) continue ;; esac
    bash -c "$test_command" >/dev/null 2>&1 </dev/null || printf '%s\n' "$package"
  done <scripts/debian-packages.txt
}

may_install() {
  [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null
}

APT=(env DEBIAN_FRONTEND=noninteractive apt-get -qq -o Acquire::Retries=3 -o DPkg::Lock::Timeout=120)

apt_update() { # once
  [ -z "${APT_UPDATED:-}" ] || return 0
  APT_UPDATED=yes
  try_thrice 300 "${APT[@]}" update >.uv/apt.log 2>&1 || { tail -n 20 .uv/apt.log >&2; fail 'apt-get update failed'; }
}

apt_install() {
  say "installing $*"
  apt_update
  hold_daemons
  try_thrice 900 "${APT[@]}" install -y --no-install-recommends "$@" >.uv/apt.log 2>&1 ||
    { tail -n 20 .uv/apt.log >&2; fail "apt-get install $* failed"; }
}

install_packages() {
  local missing
  mapfile -t missing < <(missing_packages "$1")
  [ ${#missing[@]} -gt 0 ] || return 0
  if may_install; then
    apt_install "${missing[@]}"
  else
    say "missing: ${missing[*]}"
    say "hint: as root: apt-get install ${missing[*]}"
  fi
}

# Packages of services start them when they are installed, with a configuration of their own: the tests start their
# own. Debian's way to forbid it (invoke-rc.d(8)); taken back when we end.
hold_daemons() {
  local policy=/usr/sbin/policy-rc.d
  [ ! -e "$policy" ] || return 0 # this script's from a moment ago, or the machine's own
  printf '#!/bin/sh\nexit 101\n' >"$policy"
  chmod 755 "$policy"
  trap 'wait; rm -f /usr/sbin/policy-rc.d' EXIT
}

install_uv() {
  if .uv/venv/bin/uv --version >/dev/null 2>&1; then return 0; fi
  say 'getting uv'
  rm -rf .uv/venv
  "$PYTHON" -m venv .uv/venv || fail "$PYTHON -m venv failed" 'Debian keeps it in the package python3-venv'
  try_thrice 300 .uv/venv/bin/python -m pip install --quiet --disable-pip-version-check --retries 3 "$UV_WANTED" ||
    fail 'pip could not install uv'
}

digest() { # of all files at or below the paths, by name and content
  find "$@" -type f ! -path '*/__pycache__/*' -print0 | LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum | cut -c 1-64
}

is_static() { # no ELF interpreter
  "$PYTHON" scripts/static_binary.py "$1" >/dev/null 2>&1
}

sync_environment() { # $1 other than `all`: without what only tests need, unless that is there already
  local crates lock environment synced reinstall=() what=(--all-extras --group dev) mark=
  crates=$(digest crates .cargo Cargo.toml src/tidemill/payload) lock=$(digest Cargo.lock) environment=$(digest pyproject.toml uv.lock extensions/*/pyproject.toml)
  synced=$(cat .uv/synced 2>/dev/null || true)
  if [ "$1" != all ] && [[ $synced != *[0-9a-f] ]]; then
    what=(--no-dev --extra examples --extra all) mark=-run
  fi
  if [ "$synced" = "$crates $lock $environment$mark" ] && [ -x .venv/bin/tidemill ] && is_static .venv/bin/tidemill-node; then
    return 0
  fi
  # uv keeps the wheels that it has built, and does not see that a crate next to the built one has changed; nor does it
  # see that none has: it would build for minutes what is there
  if [ "${synced% *}" != "$crates $lock" ]; then
    reinstall=(--reinstall-package tidemill-node --refresh-package tidemill-node)
  elif is_static .venv/bin/tidemill-node; then
    reinstall=(--inexact --no-install-package tidemill-node)
  fi
  say 'installing into .venv (the first time takes a few minutes)'
  # --target: with crt-static, procedural macros can be built only where the target is named
  MATURIN_PEP517_ARGS="--target $HOST" UV_HTTP_TIMEOUT=60 UV_HTTP_RETRIES=5 UV_PROJECT_ENVIRONMENT=.venv UV_PYTHON_DOWNLOADS=never \
    try_thrice 3600 .uv/venv/bin/uv sync --frozen --python "$PYTHON" "${what[@]}" "${reinstall[@]}" >.uv/sync.log 2>&1 ||
    { tail -n 60 .uv/sync.log >&2; fail 'uv sync failed'; }
  is_static .venv/bin/tidemill-node || fail '.venv/bin/tidemill-node is not a static binary' 'see .cargo/config.toml and .uv/sync.log'
  # the digests from before the build, so that what was edited meanwhile is built next time; cargo may have written its lock
  printf '%s %s %s%s' "$crates" "$(digest Cargo.lock)" "$environment" "$mark" >.uv/synced
}

# No Debian package and nothing of the Python registry is a small S3 service; the Rust registry has one. Only tests and
# benches of `s3:` need it; tests need no fast one.
install_s3_server() {
  if [ -x .tools/bin/s3s-fs ] || command -v s3s-fs >/dev/null; then return 0; fi
  say 'building s3s-fs (an S3 server for tests) into .tools'
  [ -z "${CI:-}" ] || export CARGO_PROFILE_RELEASE_OPT_LEVEL=1 CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16
  # what takes this long is a download that hangs: the next attempt goes on where this one ends
  try_thrice 1200 scripts/s3.sh build .tools >.uv/s3.log 2>&1 || say 'no s3s-fs: tests of S3 will fail; see .uv/s3.log'
  rm -rf .tools/target
}

main() {
  local goal=${1:-all} others=
  mkdir -p .uv
  if [ "$goal" = s3 ]; then # beside other set-ups: groups of tests start with one
    exec 8>.uv/s3-lock
    flock --timeout 1800 8 || fail 's3s-fs has been building for half an hour'
    find_rust run
    install_s3_server
    return
  fi
  exec 9>.uv/lock
  flock --timeout 1800 9 || fail 'another set-up of this checkout has been running for half an hour'
  find_python
  [ "$goal" = node ] || install_packages run
  find_rust "$goal"
  if [ "$goal" = all ]; then # beside the build, which needs nothing of them
    install_packages all &
    others=$!
  fi
  install_uv
  sync_environment "$goal"
  [ -z "$others" ] || wait "$others"
  say "ready: $(.venv/bin/tidemill-node --version 2>/dev/null || echo tidemill-node), $(.venv/bin/python --version)"
}

main "$@"

#!/usr/bin/env bash
# Makes a bare Debian 12 in a folder, with make, git and a C compiler only. Tests in it fail if they need something that
# this machine happens to have, but a user's machine does not.
#   scripts/bare_root.sh make ROOT              as root: make it, and clone the checkout's last commit into it; again: only the clone is new
#   scripts/bare_root.sh run ROOT COMMAND...    run a command in that clone, as root, with its own file system and processes;
#                                               processes that it leaves are killed
#   scripts/bare_root.sh remove ROOT
# Uses this machine's network and its settings for registries: sources and settings of apt, pip and cargo, certificates
# and proxies. Exits with 3 if this machine cannot have such a root, and prints the reason.
set -euo pipefail

CHECKOUT=$(cd "$(dirname "$0")/.." && pwd)
RELEASE=bookworm
PACKAGES=make,git,gcc # what README.md asks for
CLONE=/srv/tidemill   # in the root
# Variables with settings for registries.
KEPT='^(([a-z]+_|[A-Z]+_)(proxy|PROXY)|PIP_(CERT|INDEX_URL|EXTRA_INDEX_URL|TRUSTED_HOST|DEFAULT_TIMEOUT|RETRIES|PROXY)|UV_(INDEX|INDEX_URL|DEFAULT_INDEX|EXTRA_INDEX_URL|NATIVE_TLS|SYSTEM_CERTS|INSECURE_HOST)|CARGO_(HTTP|NET|REGISTRY|REGISTRIES|SOURCE)_.*|SSL_CERT_(FILE|DIR)|REQUESTS_CA_BUNDLE|CURL_CA_BUNDLE|GIT_SSL_CAINFO|CI)$'

say() { printf 'bare_root: %s\n' "$*" >&2; }
cannot() {
  say "no bare Debian here: $*"
  exit 3
}
fail() {
  say "$*"
  exit 1
}

mirror() { # apt's mirror of the release
  apt-get indextargets --format "\$(CODENAME) \$(REPO_URI)" 'Created-By: Packages' 2>/dev/null |
    sed -n "s/^$RELEASE \(https\{0,1\}:.*\)/\1/p" | head -n 1
}

apt_get() {
  DEBIAN_FRONTEND=noninteractive apt-get -qq -o Acquire::Retries=3 -o DPkg::Lock::Timeout=120 "$@" >>"$ROOT.log" 2>&1
}

needed() { # check that a root is possible; exit with the reason if it is not
  [ "$(id -u)" = 0 ] || cannot 'only root can make one'
  [ -n "$(mirror)" ] || cannot "apt has no source of Debian $RELEASE here"
  unshare --mount --pid --fork --kill-child true 2>/dev/null || cannot 'this machine refuses unshare of mounts and processes'
  command -v debootstrap >/dev/null || { apt_get update && apt_get install -y --no-install-recommends debootstrap; } ||
    fail "apt-get install debootstrap failed: see $ROOT.log"
}

carry() { # configuration of this machine, at the same path in the root
  local path
  for path in "$@"; do
    [ -e "$path" ] || continue
    mkdir -p "$ROOT$(dirname "$path")"
    cp -rTL --remove-destination --preserve=mode "$path" "$ROOT$path"
  done
}

configure() {
  local path cargo=${CARGO_HOME:-$HOME/.cargo} home=$ROOT/root
  rm -f "$ROOT/etc/apt/sources.list"
  carry /etc/apt/sources.list /etc/apt/sources.list.d /etc/apt/auth.conf.d /etc/apt/keyrings /etc/apt/trusted.gpg.d \
    /etc/resolv.conf /etc/hosts /etc/hostname /etc/pip.conf /etc/ssl/certs/ca-certificates.crt /usr/local/share/ca-certificates
  for path in /etc/apt/apt.conf.d/*; do # not those that belong to packages of this machine
    dpkg -S "$path" >/dev/null 2>&1 || carry "$path"
  done
  for path in config.toml config; do
    [ ! -e "$cargo/$path" ] || install -D -m 644 "$cargo/$path" "$home/.cargo/$path"
  done
  for path in .config/pip/pip.conf .config/uv/uv.toml; do
    [ ! -e "$HOME/$path" ] || install -D -m 644 "$HOME/$path" "$home/$path"
  done
}

# Never removes a folder with content that this script did not make.
check_own() {
  local inside
  if [ -e "$ROOT.mark" ] || [ -e "$ROOT.made" ] || [ ! -e "$ROOT" ]; then return; fi
  shopt -s nullglob dotglob
  inside=("$ROOT"/*)
  if [ ! -d "$ROOT" ] || [ ${#inside[@]} != 0 ]; then
    fail "$ROOT exists, but this script did not make it: name another folder"
  fi
}

make_root() {
  check_own
  mkdir -p "$(dirname "$ROOT")"
  : >"$ROOT.log"
  needed
  : >"$ROOT.mark"
  if [ ! -e "$ROOT/etc/apt/sources.list.d" ] || [ ! -e "$ROOT.made" ]; then
    remove_root
    say "making a bare Debian in $ROOT"
    debootstrap --variant=minbase --include="$PACKAGES" "$RELEASE" "$ROOT" "$(mirror)" >>"$ROOT.log" 2>&1 ||
      { tail -n 20 "$ROOT.log" >&2; fail "debootstrap failed: see $ROOT.log"; }
    echo force-unsafe-io >"$ROOT/etc/dpkg/dpkg.cfg.d/unsafe-io" # need not survive a power cut
    : >"$ROOT.made"
  fi
  configure
  rm -rf --one-file-system "$ROOT$CLONE"
  git clone -q --no-hardlinks "$CHECKOUT" "$ROOT$CLONE" || fail "git clone of $CHECKOUT failed"
}

run_in_root() {
  local i variables
  mapfile -t variables < <(env | cut -d= -f1 | grep -E "$KEPT")
  for i in "${!variables[@]}"; do variables[i]="${variables[i]}=${!variables[i]}"; done
  # pivot_root, not chroot: the kernel refuses user namespaces inside a chroot. The shell stays as the first process, and
  # waits for orphaned processes.
  # shellcheck disable=SC2016
  unshare --mount --pid --fork --kill-child bash -euc '
    root=$1 clone=$2
    shift 2
    mount --make-rprivate /
    mount --bind "$root" "$root"
    mount -t proc proc "$root/proc"
    mount --rbind /sys "$root/sys"
    mount --rbind /dev "$root/dev"
    mount -t tmpfs -o mode=1777 shm "$root/dev/shm"
    mount -t tmpfs -o mode=755 run "$root/run"
    mkdir -p "$root/.old" "$root/run/lock"
    cd "$root"
    pivot_root . .old
    cd "$clone"
    umount --lazy /.old
    "$@" </dev/null
    exit' _ "$ROOT" "$CLONE" env -i HOME=/root USER=root LANG=C.UTF-8 \
    PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "${variables[@]}" "$@"
}

remove_root() { # its mounts ended with their processes
  rm -rf --one-file-system "$ROOT" "$ROOT.made"
}

[ $# -ge 2 ] || fail 'usage: bare_root.sh make|run|remove ROOT [COMMAND...]'
goal=$1
ROOT=$(realpath -m "$2")
shift 2
case $goal in
  make) make_root ;;
  run) run_in_root "$@" ;;
  remove)
    check_own
    remove_root
    rm -f "$ROOT.mark"
    ;;
  *) fail "unknown: $goal" ;;
esac

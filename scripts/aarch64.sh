#!/usr/bin/env bash
# Builds the wheel of tidemill-node for aarch64 on an x86_64 Debian, into a folder: as root, for the packages.
#
#   scripts/aarch64.sh OUT
#
# Debian's compiler for web browsers is recent enough, and its standard library exists for arm64; that is unpacked beside, not installed, so
# that the machine stays one of x86_64. The program is linked statically by gcc-aarch64-linux-gnu, and started once by qemu-user.
set -euo pipefail
[ $# -eq 1 ] || { sed -n '2,4p' "$0" >&2; exit 2; }
out=$(realpath -m "$1")
cd "$(dirname "$0")/.."
target=aarch64-unknown-linux-gnu
work=$PWD/target/aarch64
host=$(/usr/bin/dpkg --print-architecture)
[ "$host" = amd64 ] || { echo "error: this machine is $host, not amd64: build there with \`make dist\`" >&2; exit 2; }

apt-get install -y -qq --no-install-recommends rustc-web cargo-web gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user-static >&2
version=$(dpkg-query -W -f '${Version}' rustc-web)
mkdir -p "$work/packages" "$work/sysroot/lib/rustlib"
if [ ! -d "$work/std-$version" ]; then
  dpkg --print-foreign-architectures | grep -qx arm64 || {
    dpkg --add-architecture arm64
    trap 'dpkg --remove-architecture arm64' EXIT
    apt-get update -qq
  }
  (cd "$work/packages" && apt-get download -qq "libstd-rust-web-dev:arm64=$version")
  dpkg-deb -x "$work"/packages/libstd-rust-web-dev_*_arm64.deb "$work/std-$version"
fi
ln -sfn /usr/lib/rustlib/x86_64-unknown-linux-gnu "$work/sysroot/lib/rustlib/x86_64-unknown-linux-gnu"
ln -sfn "$work/std-$version/usr/lib/rustlib/$target" "$work/sysroot/lib/rustlib/$target"

maturin=$PWD/.venv/bin/maturin
cd crates/tidemill-node
# Flags in the environment replace those of .cargo/config.toml for this target: crt-static again.
env PATH=/usr/bin:/bin CARGO=/usr/bin/cargo RUSTC=/usr/bin/rustc CARGO_TARGET_DIR="$work/target" \
  CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc \
  CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUSTFLAGS="--sysroot=$work/sysroot -C target-feature=+crt-static" \
  CC_aarch64_unknown_linux_gnu=aarch64-linux-gnu-gcc \
  "$maturin" build --profile dist --locked --target "$target" --out "$out" >&2
program=$work/target/$target/dist/tidemill-node
qemu-aarch64-static "$program" --version

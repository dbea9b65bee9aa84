#!/bin/sh
# Builds the server's container (deploy/Containerfile) without any registry of images, runs it and asks for its health: as root.
#
#   scripts/container.sh WHEELS      WHEELS: a directory with the wheels of tidemill, tidemill-node and all dependencies, for
#                                    /usr/bin/python3, such as `make container` gathers
#
# The base image is made of this machine's own Python (Debian's packages python3, python3-venv, passwd, coreutils, dash).
# Networks are the host's and processes are kept apart by chroot, so that it works inside a container, too.
set -eu

if [ $# -ne 1 ] || [ ! -d "$1" ]; then
    sed -n '2,9p' "$0" >&2
    exit 2
fi
top=$(dirname "$(dirname "$(realpath "$0")")")
wheels=$(realpath "$1")
work=$(mktemp -d /tmp/tidemill-ctr-XXXXXX)
name=tidemill-ctr-$$
storage="--root=$work/store --runroot=$work/run --storage-driver=vfs"
running=

cleanup() {
    [ -z "$running" ] || kill "$running" 2>/dev/null || true
    # shellcheck disable=SC2086
    buildah $storage rm -a >/dev/null 2>&1 || true
    # shellcheck disable=SC2086
    podman $storage rmi -af >/dev/null 2>&1 || true
    rm -rf "$work"
}
trap cleanup EXIT

copy() { # a program or library with everything that it needs
    for each in "$@"; do
        mkdir -p "$work/root$(dirname "$each")"
        cp -L "$each" "$work/root$each"
        ldd "$each" 2>/dev/null | grep -o '/[^ )]*' | while read -r library; do
            [ -e "$work/root$library" ] || {
                mkdir -p "$work/root$(dirname "$library")"
                cp -L "$library" "$work/root$library"
            }
        done
    done
}

python=$(realpath /usr/bin/python3)
copy "$python" /usr/bin/dash /usr/bin/mkdir /usr/bin/chown /usr/bin/rm /usr/sbin/useradd
for library in /usr/lib/"$(basename "$python")"/lib-dynload/*.so; do
    copy "$library"
done
# What wheels may be linked against: PEP 600
for library in libpthread.so.0 libdl.so.2 librt.so.1 libutil.so.1 libm.so.6 libgcc_s.so.1 libstdc++.so.6; do
    copy "$(ldconfig -p | sed -n "s|.*$library .*x86-64.* => ||p" | head -1)"
done
ln -sf "$(basename "$python")" "$work/root/usr/bin/python3"
ln -sf dash "$work/root/usr/bin/sh"
mkdir -p "$work/root/usr/share" "$work/root/etc" "$work/root/tmp" "$work/root/proc" "$work/root/dev"
cp -a /usr/lib/"$(basename "$python")" "$work/root/usr/lib/"
cp -a /usr/share/python-wheels "$work/root/usr/share/"
for link in bin sbin lib lib64; do
    [ ! -L "/$link" ] || [ -e "$work/root/$link" ] || ln -s "usr/$link" "$work/root/$link"
done
echo 'root:x:0:0:root:/:/bin/sh' >"$work/root/etc/passwd"
echo 'root:x:0:' >"$work/root/etc/group"
: >"$work/root/etc/shadow"
: >"$work/root/etc/login.defs"
tar -C "$work/root" -cf "$work/base.tar" .
# shellcheck disable=SC2086
podman $storage import -q "$work/base.tar" localhost/tm-base >/dev/null
rm -rf "$work/root" "$work/base.tar"

mkdir -p "$work/context/dist"
cp "$wheels"/*.whl "$work/context/dist/"
cp "$top/deploy/Containerfile" "$work/context/"
# shellcheck disable=SC2086
podman $storage build -q --isolation=chroot --network=host --format=docker --build-arg BASE=localhost/tm-base \
    --build-arg PIP_OPTIONS=--no-index -t "localhost/$name" -f "$work/context/Containerfile" "$work/context"

port=$(python3 -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])')
mkdir -m 0700 "$work/data"
python3 -c 'import secrets; print(secrets.token_hex(32))' >"$work/data/secret"
chmod 0600 "$work/data/secret"
printf 'dir = "/data"\nlisten = "127.0.0.1:%s"\nsecret_file = "/data/secret"\n' "$port" >"$work/data/server.toml"
chown -R 10001 "$work/data"
# By buildah, and so without the walls that `podman run` adds: these need cgroups that not every machine gives.
# shellcheck disable=SC2086
made=$(buildah $storage from "localhost/$name")
# shellcheck disable=SC2086
buildah $storage config --volume /data- "$made" # buildah 1.28 lays the image's own volume over what `-v` names
# shellcheck disable=SC2086
buildah $storage run --isolation=chroot --network=host --user=10001 -v "$work/data:/data" "$made" -- \
    tidemill server run --config /data/server.toml &
running=$!
for _ in $(seq 300); do
    sleep 0.2
    answer=$(curl -fsS "http://127.0.0.1:$port/health" 2>/dev/null) && break
done
echo "${answer:?the server in the container does not answer}"

#!/bin/sh
# Start or stop an S3-compatible server for tests and benches, on loopback, as an ordinary user: s3s-fs, objects in files.
#
#   scripts/s3.sh build PREFIX   builds it from the Rust registry into PREFIX/bin (cargo, 2 minutes); it searches .tools by itself
#   scripts/s3.sh start DIR      prints its http:// address; buckets are directories in DIR/data, keys in DIR/credentials
#   scripts/s3.sh stop DIR       stops it; the data stay
#   scripts/s3.sh crash DIR      kills it with SIGKILL
#
# As root it runs as the user `nobody`.
set -eu
wanted=$(realpath -m "${2:-.}") # seen from where we were called
cd "$(dirname "$0")"
here=$PWD
usage() {
    sed -n '2,9p' "$here/s3.sh" >&2
    exit 2
}
[ $# -eq 2 ] || usage
verb=$1
dir=$wanted
. ./service.sh
VERSION=0.14.1 # of s3s-fs: the newest that Rust 1.95 builds

find_server() {
    server=$(command -v s3s-fs || true)
    [ -n "$server" ] || server=$(realpath -m "$here/../.tools/bin/s3s-fs")
    [ -x "$server" ] || {
        echo "there is no program \`s3s-fs\`; hint: scripts/s3.sh build .tools" >&2
        exit 3
    }
}

start() {
    find_server
    mkdir -p "$dir/data/tests"
    port=$(port_of port)
    # once: a client that tries again while the server starts must not find an empty file
    [ -s "$dir/credentials" ] ||
        printf '[default]\naws_access_key_id = tests\naws_secret_access_key = tests-of-tidemill\n' >"$dir/credentials"
    printf '[default]\naws_access_key_id = tests\naws_secret_access_key = wrong\n' >"$dir/wrong"
    own "$dir/data"
    chmod 755 "$dir"
    cd "$dir/data"
    become "$server" --host 127.0.0.1 --port "$port" --access-key tests --secret-key tests-of-tidemill "$dir/data" \
        </dev/null >"$dir/log" 2>&1 &
    echo $! >"$dir/pid"
    wait_open "$port" $! "$dir/log"
    echo "http://127.0.0.1:$port"
}

case $verb in
    build)
        # In CI half of the processor time: only digests, which take most of the server's own time, are compiled at their fastest.
        set --
        if [ -n "${CI:-}" ]; then
            export CARGO_PROFILE_RELEASE_OPT_LEVEL=0 CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16
            set -- --config 'profile.release.package.sha2.opt-level=3' --config 'profile.release.package.md-5.opt-level=3'
        fi
        # `exec`: who ends this script for its time ends cargo, and not the shell before it only. What is compiled stays
        # until all is: the next attempt goes on with it.
        exec env CARGO_TARGET_DIR="$dir/target" \
            cargo install --quiet --locked --force --version "$VERSION" --features binary --root "$dir" "$@" s3s-fs
        ;;
    start) start ;;
    stop) end_by_pid -TERM "$dir/pid" s3s-fs ;;
    crash) end_by_pid -KILL "$dir/pid" s3s-fs ;;
    *) usage ;;
esac

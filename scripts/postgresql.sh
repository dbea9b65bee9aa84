#!/bin/sh
# Start or stop a PostgreSQL of Debian's packages for tests and benches: Unix socket only, in a directory that its user alone may enter.
#
#   scripts/postgresql.sh start DIR    prints the database URL; DIR is created, or started again if it is there
#   scripts/postgresql.sh stop DIR     stops it; the data stay
#   scripts/postgresql.sh crash DIR    kills it with SIGKILL
#
# As root it runs as user postgres (PostgreSQL refuses root). DIR should be short: a socket path has at most 107 bytes.
set -eu

usage() {
    sed -n '2,8p' "$0" >&2
    exit 2
}

[ $# -eq 2 ] || usage
verb=$1
dir=$(realpath -m "$2")

bin=
for each in /usr/lib/postgresql/*/bin; do
    [ -x "$each/initdb" ] && bin=$each # the last is the newest
done
if [ -z "$bin" ]; then
    echo "PostgreSQL's server programs are not in /usr/lib/postgresql/*/bin; hint: apt-get install postgresql" >&2
    exit 3
fi

as_owner() {
    if [ "$(id -u)" = 0 ]; then
        setpriv --reuid=postgres --regid=postgres --init-groups env HOME="$dir" "$@"
    else
        "$@"
    fi
}

start() {
    mkdir -p "$dir/socket"
    chmod 0700 "$dir" "$dir/socket"
    if [ "$(id -u)" = 0 ]; then
        chown postgres:postgres "$dir" "$dir/socket"
    fi
    cd "$dir"
    if [ ! -s "$dir/data/PG_VERSION" ]; then
        as_owner "$bin/initdb" -D "$dir/data" -U tidemill -A trust -E UTF8 --locale=C.UTF-8 >"$dir/initdb.log" 2>&1 || {
            cat "$dir/initdb.log" >&2
            exit 3
        }
    fi
    as_owner "$bin/pg_ctl" -D "$dir/data" -w -t 60 -l "$dir/server.log" \
        -o "-c listen_addresses='' -c unix_socket_directories='$dir/socket' -c unix_socket_permissions=0700 ${POSTGRESQL_OPTIONS:-}" \
        start >/dev/null || {
        tail -20 "$dir/server.log" >&2
        exit 3
    }
    echo "postgresql://tidemill@/postgres?host=$dir/socket"
}

signal() {
    pid=$(head -1 "$dir/data/postmaster.pid" 2>/dev/null) || exit 0
    grep -qa postgres "/proc/$pid/cmdline" 2>/dev/null || exit 0
    kill "$1" "$pid"
    for _ in $(seq 300); do
        kill -0 "$pid" 2>/dev/null || exit 0
        sleep 0.1
    done
    echo "PostgreSQL (process $pid) has not ended" >&2
    exit 3
}

case $verb in
    start) start ;;
    stop) signal -INT ;;
    crash) signal -KILL ;;
    *) usage ;;
esac

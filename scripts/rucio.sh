#!/bin/sh
# Start or stop a real Rucio server for tests, with a PostgreSQL of Debian's packages, on loopback, as an ordinary user.
#
#   scripts/rucio.sh start DIR    prints its URL and the password of its account `root`, one a line
#   scripts/rucio.sh stop DIR     stops it and its database; the data stay
#   scripts/rucio.sh crash DIR    kills the server with SIGKILL
#   scripts/rucio.sh dbstop DIR   stops its database alone
#   scripts/rucio.sh dbstart DIR  starts that again
#
# Rucio's packages go into an environment of their own, TIDEMILL_RUCIO_VENV (default: below /var/tmp), which is made once:
# Tidemill depends on none of them. DIR should be short: a socket path has at most 107 bytes. None of Rucio's daemons runs.
set -eu
cd "$(dirname "$0")"
here=$PWD
usage() {
    sed -n '2,11p' "$here/rucio.sh" >&2
    exit 2
}
[ $# -eq 2 ] || usage
verb=$1
dir=$(realpath -m "$2")
. ./service.sh
venv=${TIDEMILL_RUCIO_VENV:-/var/tmp/tidemill-rucio-$(id -u)}
packages='rucio==41.5.1 psycopg[binary]==3.3.9 waitress==3.0.2'

install() {
    "$venv/bin/python" -c 'import rucio, psycopg, waitress' 2>/dev/null && return 0
    python=/usr/bin/python3
    [ -x "$python" ] || python=python3
    # shellcheck disable=SC2086
    { "$python" -m venv "$venv" && "$venv/bin/pip" install -q $packages; } >&2 || {
        echo "Rucio's packages cannot be installed into $venv; hint: apt-get install python3-venv, and reach a package index" >&2
        exit 3
    }
    chmod -R go+rX "$venv"
}

run() { # a program of Rucio's, with nothing of the caller's environment
    become env -i PATH="$venv/bin:/usr/bin:/bin" HOME="$dir/home" TZ=UTC RUCIO_HOME="$dir/home" \
        RUCIO_CONFIG="$dir/home/etc/rucio.cfg" PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 "$@"
}

configure() {
    mkdir -p "$dir/home/etc" "$dir/log"
    [ -s "$dir/password" ] || od -An -tx1 -N12 /dev/urandom | tr -d ' \n' >"$dir/password"
    database="postgresql+psycopg://$owner@/rucio?host=$dir/pg"
    cat >"$dir/home/etc/rucio.cfg" <<END
[common]
logdir = $dir/log
loglevel = INFO
[database]
default = $database
pool_size = 4
[bootstrap]
userpass_identity = root
userpass_pwd = $(cat "$dir/password")
[alembic]
cfg = $dir/home/etc/alembic.ini
[policy]
permission = generic
schema = generic
[cache]
url = 127.0.0.1:9
[core]
geoip_ignore_error = True
END
    cat >"$dir/home/etc/alembic.ini" <<END
[alembic]
script_location = rucio.db.sqla:migrate_repo
sqlalchemy.url = $database
[loggers]
keys = root
[handlers]
keys = err
[formatters]
keys =
[logger_root]
level = WARN
handlers = err
[handler_err]
class = StreamHandler
args = (sys.stderr,)
END
    own "$dir/home" "$dir/log"
}

# Its own database server, as the service's user: `nobody` where root runs this.
bin=
for each in /usr/lib/postgresql/*/bin; do
    [ -x "$each/initdb" ] && bin=$each # the last is the newest
done
owner=rucio

database() { # start|stop
    (
        cd /
        become "$bin/pg_ctl" -D "$dir/pg/data" -w -s -m fast -l "$dir/pg/server.log" \
            -o "-c listen_addresses='' -c unix_socket_directories=$dir/pg -c fsync=off" "$1" >/dev/null
    )
}

make_database() {
    [ -n "$bin" ] || {
        echo "PostgreSQL's server programs are not in /usr/lib/postgresql/*/bin; hint: apt-get install postgresql" >&2
        exit 3
    }
    mkdir -p "$dir/pg"
    own "$dir/pg"
    chmod 755 "$dir"
    if [ ! -s "$dir/pg/data/PG_VERSION" ]; then
        (cd / && become "$bin/initdb" -D "$dir/pg/data" -U "$owner" -A trust -E UTF8 --locale=C.UTF-8 -N) \
            >"$dir/initdb.log" 2>&1 || {
            tail -n 5 "$dir/initdb.log" >&2
            exit 3
        }
    fi
    database start || {
        tail -n 20 "$dir/pg/server.log" >&2
        exit 3
    }
    [ -s "$dir/pg/made" ] || {
        (cd / && become "$bin/createdb" -h "$dir/pg" -U "$owner" rucio)
        (
            cd "$dir/home"
            run "$venv/bin/python" -c 'from rucio.db.sqla import util
util.build_database()
util.create_base_vo()
util.create_root_account()'
        ) >"$dir/log/bootstrap" 2>&1 || {
            tail -n 20 "$dir/log/bootstrap" >&2
            exit 3
        }
        echo yes >"$dir/pg/made"
    }
}

start() {
    install
    mkdir -p "$dir"
    configure
    make_database
    port=$(port_of port)
    (
        cd "$dir/home"
        run "$venv/bin/waitress-serve" --listen="127.0.0.1:$port" --threads=6 rucio.web.rest.flaskapi.v1.main:application
    ) </dev/null >>"$dir/log/server" 2>&1 &
    server=$!
    echo $server >"$dir/pid"
    for _ in $(seq 6); do # it takes up to a minute where much else is going on
        (wait_open "$port" $server) >/dev/null 2>&1 && break
    done
    wait_open "$port" $server "$dir/log/server"
    echo "http://127.0.0.1:$port"
    cat "$dir/password"
    echo
}

case $verb in
    start) start ;;
    stop)
        end_by_pid -TERM "$dir/pid" waitress
        database stop || true
        ;;
    crash) end_by_pid -KILL "$dir/pid" waitress ;;
    dbstop) database stop ;;
    dbstart) database start ;;
    *) usage ;;
esac

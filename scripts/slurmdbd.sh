#!/bin/sh
# Start or stop Slurm's accounting of Debian's packages for tests and benches, as an ordinary user: MariaDB on a Unix socket that its user
# alone may enter, munged, and a slurmdbd that knows the cluster `tidemill`. Clients reach slurmdbd on loopback; it takes connections on any
# address (22.05 has no setting), and those who lack munged's key get no answer.
#
#   scripts/slurmdbd.sh start DIR        prints the path of a slurm.conf for sacct and sacctmgr; DIR is created, or started again
#   scripts/slurmdbd.sh stop DIR         stops all three; the data stay
#   scripts/slurmdbd.sh load DIR FILE    runs a file of SQL on its database `slurm_acct_db`; slurmdbd goes on
#
# As root it runs as Debian's user slurm. A cluster that uses it: scripts/slurm.sh start CLUSTER --accounting slurmdbd=DIR
# DIR should be short: a socket path has at most 107 bytes. Others may enter it: clients need the socket of munged.
set -eu
wanted=$(realpath -m "${2:-.}") # seen from where we were called
file=$(realpath -m "${3:-.}")
cd "$(dirname "$0")"
here=$PWD
usage() {
    sed -n '2,12p' "$here/slurmdbd.sh" >&2
    exit 2
}
[ $# -ge 2 ] || usage
verb=$1
dir=$wanted
. ./service.sh

fail() {
    echo "$*" >&2
    exit 3
}

user=$(id -un)
[ "$(id -u)" != 0 ] || user=slurm

as_owner() { # replaces this shell: for a subshell, so that `$!` is the program
    if [ "$(id -u)" = 0 ]; then
        exec setpriv --reuid=slurm --regid=slurm --clear-groups env HOME="$dir" "$@"
    else
        exec "$@"
    fi
}

sql() { # COMMAND-LINE...: reads statements
    (as_owner mariadb --no-defaults --socket="$dir/db.sock/s" "$@")
}

answers() { # SECONDS PID LOG COMMAND...: waits for the command to succeed while the process lives
    seconds=$1 pid=$2 log=$3
    shift 3
    for _ in $(seq $((seconds * 10))); do
        if "$@" >/dev/null 2>&1; then return 0; fi
        kill -0 "$pid" 2>/dev/null || break
        sleep 0.1
    done
    tail -n 20 "$log" >&2
    exit 3
}

find_programs() {
    for each in munged:munge mariadbd:mariadb-server-core mariadb-install-db:mariadb-server-core mariadb:mariadb-client-core slurmdbd:slurmdbd \
        sacctmgr:slurm-client; do
        command -v "${each%:*}" >/dev/null || fail "there is no ${each%:*}; hint: apt-get install --no-install-recommends ${each#*:}"
    done
    ls /usr/lib/*/slurm*/accounting_storage_mysql.so >/dev/null 2>&1 ||
        fail "slurmdbd has no accounting_storage_mysql.so; hint: apt-get install --no-install-recommends slurm-wlm-mysql-plugin"
}

make_directories() {
    mkdir -p "$dir/etc" "$dir/log" "$dir/run/munge" "$dir/db" "$dir/db.sock" "$dir/db.tmp" "$dir/munge"
    chmod 0755 "$dir" "$dir/etc" "$dir/run" "$dir/run/munge"
    chmod 0700 "$dir/db" "$dir/db.sock" "$dir/db.tmp" "$dir/munge" "$dir/log"
    [ -s "$dir/munge/key" ] || (umask 077 && head -c 1024 /dev/urandom >"$dir/munge/key")
    if [ "$(id -u)" = 0 ]; then chown -R slurm:slurm "$dir"; fi
}

configure() { # PORT
    auth="AuthType=auth/munge
AuthInfo=socket=$dir/run/munge/sock,cred_expire=60"
    (
        umask 077 # slurmdbd demands it
        cat >"$dir/etc/slurmdbd.conf" <<END
$auth
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort=$1
SlurmUser=$user
LogFile=$dir/log/slurmdbd.log
PidFile=$dir/run/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=$user
StorageLoc=slurm_acct_db
END
    )
    cat >"$dir/etc/slurm.conf" <<END
ClusterName=tidemill
SlurmctldHost=localhost(127.0.0.1)
SlurmUser=$user
$auth
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort=$1
AccountingStoragePass=$dir/run/munge/sock
NodeName=n[1-4] State=FUTURE
PartitionName=batch Nodes=ALL Default=YES
END
    chmod 0644 "$dir/etc/slurm.conf"
    if [ "$(id -u)" = 0 ]; then chown slurm:slurm "$dir/etc/slurm.conf" "$dir/etc/slurmdbd.conf"; fi
}

start() {
    find_programs
    make_directories
    port=$(port_of port)
    configure "$port"
    cd "$dir"
    # Who may open the socket is the database's user, without a password: mariadb-install-db makes this account for him
    # at its start, MariaDB removes the temporary tables of any other MariaDB in the same TMPDIR, such as /tmp
    [ -d "$dir/db/mysql" ] || (as_owner env TMPDIR="$dir/db.tmp" mariadb-install-db --no-defaults --datadir="$dir/db" --auth-root-authentication-method=socket \
        --auth-root-socket-user="$user" --skip-test-db) >"$dir/log/install" 2>&1 || fail "$(tail -5 "$dir/log/install")"
    (as_owner env TMPDIR="$dir/db.tmp" mariadbd --no-defaults --datadir="$dir/db" --socket="$dir/db.sock/s" --skip-networking --pid-file="$dir/run/mariadbd.pid" \
        --innodb-buffer-pool-size=128M --innodb-lock-wait-timeout=900 --innodb-flush-log-at-trx-commit=0 --log-error="$dir/log/mariadbd" \
        </dev/null >/dev/null 2>&1) &
    answers 60 $! "$dir/log/mariadbd" sql -e 'select 1'
    (as_owner munged --foreground --force --key-file="$dir/munge/key" --socket="$dir/run/munge/sock" --pid-file="$dir/run/munged.pid" \
        --seed-file="$dir/munge/seed" --num-threads=4 </dev/null >"$dir/log/munged" 2>&1) &
    answers 20 $! "$dir/log/munged" munge -n --socket="$dir/run/munge/sock"
    # The client library takes the socket from the environment where the host is `localhost`
    (as_owner env SLURM_CONF="$dir/etc/slurm.conf" MYSQL_UNIX_PORT="$dir/db.sock/s" slurmdbd -D </dev/null >"$dir/log/slurmdbd.out" 2>&1) &
    echo $! >"$dir/slurmdbd.pid"
    wait_open "$port" $! "$dir/log/slurmdbd.out" "$dir/log/slurmdbd.log"
    answers 60 $! "$dir/log/slurmdbd.log" env SLURM_CONF="$dir/etc/slurm.conf" sacctmgr -n show cluster
    SLURM_CONF="$dir/etc/slurm.conf" sacctmgr -i -Q add cluster tidemill >/dev/null 2>&1 || true # it is there already
    echo "$dir/etc/slurm.conf"
}

stop() {
    end_by_pid -TERM "$dir/slurmdbd.pid" slurmdbd
    end_by_pid -TERM "$dir/run/munged.pid" munged
    end_by_pid -TERM "$dir/run/mariadbd.pid" mariadbd
}

case $verb in
    start) start ;;
    stop) stop ;;
    load)
        [ $# -eq 3 ] || usage
        sql slurm_acct_db <"$file"
        ;;
    *) usage ;;
esac

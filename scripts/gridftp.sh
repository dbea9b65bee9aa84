#!/bin/sh
# Start or stop two GridFTP servers of Debian's packages (Grid Community Toolkit) for tests and benches, on loopback, as an
# ordinary user: one anonymous (ftp://), one with GSI certificates (gsiftp://).
#
#   scripts/gridftp.sh start DIR    prints both addresses; files are below DIR/data; certificates in DIR/certs
#   scripts/gridftp.sh stop DIR     stops them; the data stay
#   scripts/gridftp.sh crash DIR    kills them, and the processes of their sessions, with SIGKILL
#
# A client needs X509_CERT_DIR=DIR/certs/trust X509_USER_CERT=DIR/certs/user.pem X509_USER_KEY=DIR/certs/user.key;
# `stranger` is not a user of the server. As root it runs as the user `nobody`: the server maps no user to root.
set -eu
cd "$(dirname "$0")"
here=$PWD
usage() {
    sed -n '2,11p' "$here/gridftp.sh" >&2
    exit 2
}
[ $# -eq 2 ] || usage
verb=$1
dir=$(realpath -m "$2")
. ./service.sh

serve() { # NAME PORT OPTION...
    name=$1 port=$2
    shift 2
    # a session of its own: the server forks for each connection, and `crash` is to end those, too
    become setsid globus-gridftp-server -p "$port" -control-interface 127.0.0.1 -data-interface 127.0.0.1 -c /dev/null \
        -no-detach -home-dir "$dir/data" -rp "$dir/data" -log-level ERROR,WARN,INFO -l "$dir/$name.log" "$@" \
        </dev/null >"$dir/$name.out" 2>&1 &
    echo $! >"$dir/$name.pid"
    wait_open "$port" $! "$dir/$name.out" "$dir/$name.log"
}

start() {
    command -v globus-gridftp-server >/dev/null || {
        echo "there is no program \`globus-gridftp-server\`; hint: apt-get install globus-gridftp-server-progs globus-gass-copy-progs" >&2
        exit 3
    }
    mkdir -p "$dir/data" "$dir/certs"
    make_ca "$dir/certs" host user stranger
    printf '"/O=tidemill-tests/CN=user" %s\n' "$(owner)" >"$dir/certs/gridmap"
    own "$dir/data" "$dir/certs/host.key" "$dir/certs/host.pem"
    if [ "$(id -u)" = 0 ]; then chown nobody "$dir"; fi
    anonymous=$(port_of anonymous) gsi=$(port_of gsi)
    unset X509_USER_PROXY X509_USER_CERT X509_USER_KEY X509_CERT_DIR
    serve anonymous "$anonymous" -aa -anonymous-user "$(owner)"
    export GRIDMAP="$dir/certs/gridmap" X509_CERT_DIR="$dir/certs/trust" X509_USER_CERT="$dir/certs/host.pem" \
        X509_USER_KEY="$dir/certs/host.key"
    serve gsi "$gsi"
    echo "ftp://127.0.0.1:$anonymous$dir/data/"
    echo "gsiftp://localhost:$gsi$dir/data/"
}

end_all() { # SIGNAL
    for name in anonymous gsi; do
        group=$(cat "$dir/$name.pid" 2>/dev/null) || continue
        end_by_pid "$1" "$dir/$name.pid" globus-gridftp
        kill -KILL "-$group" 2>/dev/null || true
    done
}

case $verb in
    start) start ;;
    stop) end_all -TERM ;;
    crash) end_all -KILL ;;
    *) usage ;;
esac

#!/bin/sh
# Start or stop an XRootD server of Debian's packages for tests and benches, on loopback, as an ordinary user.
#
#   scripts/xrootd.sh start DIR    prints the root:// and the https:// address of the same files (DIR/data); DIR/certs/ca.pem
#   scripts/xrootd.sh stop DIR     stops it; the data stay
#   scripts/xrootd.sh crash DIR    kills it with SIGKILL
#
# /denied in it may not be read or written. XROOTD_OPTIONS: further lines of its configuration, such as
# `xrootd.redirect ...`; XROOTD_CHKSUM: who makes checksums. As root it runs as the user `nobody` (xrootd refuses uid 0).
set -eu
cd "$(dirname "$0")"
here=$PWD
usage() {
    sed -n '2,9p' "$here/xrootd.sh" >&2
    exit 2
}
[ $# -eq 2 ] || usage
verb=$1
dir=$(realpath -m "$2")
. ./service.sh

start() {
    command -v xrootd >/dev/null || {
        echo "there is no program \`xrootd\`; hint: apt-get install xrootd-server xrootd-client" >&2
        exit 3
    }
    mkdir -p "$dir/data/denied" "$dir/admin" "$dir/run"
    mkdir -p "$dir/certs"
    make_ca "$dir/certs" host
    port=$(port_of port) http=$(port_of http)
    cat >"$dir/xrootd.cfg" <<END
all.export /
oss.localroot $dir/data
all.adminpath $dir/admin
all.pidpath $dir/run
xrd.allow host 127.0.0.1
xrd.allow host localhost
xrd.network nodnr
xrd.protocol http:$http libXrdHttp.so
xrd.tls $dir/certs/host.pem $dir/certs/host.key
xrd.tlsca certfile $dir/certs/ca.pem
xrootd.chksum ${XROOTD_CHKSUM:-max 2 adler32}
acc.authdb $dir/auth
ofs.authorize
${XROOTD_OPTIONS:-}
END
    printf 'u * /denied -a / a\n' >"$dir/auth"
    own "$dir"
    cd "$dir"
    # xrootd 5.5.3 is ended by SIGSEGV once in about a hundred starts, before its first line: such a start is repeated
    for left in 2 1 0; do
        become xrootd -n tests -c "$dir/xrootd.cfg" -l "$dir/log" -p "$port" </dev/null >"$dir/out" 2>&1 &
        pid=$!
        echo $pid >"$dir/pid"
        if (wait_open "$port" "$pid" "$dir/out" "$dir/tests/log") 2>"$dir/complaint"; then break; fi
        status=0
        if ! kill -0 $pid 2>/dev/null; then wait $pid || status=$?; fi
        if [ $status != 139 ] || [ $left = 0 ]; then
            cat "$dir/complaint" >&2
            exit 3
        fi
    done
    wait_open "$http" "$pid" "$dir/out" "$dir/tests/log"
    echo "root://127.0.0.1:$port/"
    echo "https://localhost:$http/"
}

case $verb in
    start) start ;;
    stop) end_by_pid -TERM "$dir/pid" xrootd ;;
    crash) end_by_pid -KILL "$dir/pid" xrootd ;;
    *) usage ;;
esac

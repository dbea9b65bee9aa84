#!/bin/sh
# Start or stop a RabbitMQ of Debian's package for tests: TLS only, on 127.0.0.1, and who connects is who the client certificate says.
#
#   scripts/rabbitmq.sh start DIR [OPTIONS]   prints its address; DIR is created, or started again as it was
#   scripts/rabbitmq.sh stop DIR              stops it; the state stays
#   scripts/rabbitmq.sh crash DIR             kills the broker with SIGKILL
#   scripts/rabbitmq.sh ctl DIR WORDS...      rabbitmqctl of this broker
#
#   --port BASE (three free ones in a row)  --names "ROLE/NAME ..."  --definitions FILE  --login common_name|distinguished_name
#
# DIR/certs holds ca.pem, and NAME.pem and NAME.key for the broker (`broker`), for each of the names, and `stray`: another
# authority's certificate with the first name. Everything lives in DIR, the Erlang cookie and epmd included. As root it runs as user rabbitmq.
set -eu

usage() {
    sed -n '2,14p' "$0" >&2
    exit 2
}

fail() {
    echo "$*" >&2
    exit 3
}

[ $# -ge 2 ] || usage
verb=$1
dir=$(realpath -m "$2")
shift 2
bin=/usr/lib/rabbitmq/bin # the wrappers in /usr/sbin want root or user rabbitmq

as_owner() {
    if [ "$(id -u)" = 0 ]; then
        setpriv --reuid=rabbitmq --regid=rabbitmq --clear-groups "$@"
    else
        "$@"
    fi
}

detached() { # LOG WORDS...: the reader of this script's output does not wait for it; `exec`, since a redirected function keeps the old files open
    log=$1
    shift
    exec </dev/null >"$log" 2>&1 9>&-
    as_owner "$@"
}

free_port() { # the first of three TCP ports in a row that are free, below the ephemeral ones
    used=$(awk 'FNR > 1 { split($2, a, ":"); print a[2] }' /proc/net/tcp /proc/net/tcp6 2>/dev/null | sort -u)
    for port in $(seq $((10000 + $$ % 1000 * 10)) 10 29990); do
        taken=
        for each in 0 1 2; do
            case $used in *$(printf '%04X' $((port + each)))*) taken=yes ;; esac
        done
        [ -n "$taken" ] || { echo "$port" && return; }
    done
    fail "no free ports between 10000 and 29990"
}

certificates() { # an authority, the broker, and all clients; kept when they are there
    mkdir -p "$dir/certs"
    cd "$dir/certs"
    new="openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes"
    [ -s ca.pem ] || $new -x509 -keyout ca.key -out ca.pem -days 365 -subj "/O=Tidemill test/CN=authority" 2>/dev/null
    for each in broker "$@"; do
        name=${each#*/}
        [ ! -s "$name.pem" ] || continue
        case $each in */*) unit="/OU=${each%%/*}" use=clientAuth alt='' ;; *) unit='' use=serverAuth alt="subjectAltName=IP:127.0.0.1,DNS:localhost" ;; esac
        $new -keyout "$name.key" -out "$name.csr" -subj "/O=Tidemill test$unit/CN=$name" 2>/dev/null
        printf 'basicConstraints=CA:FALSE\nextendedKeyUsage=%s\n%s\n' "$use" "$alt" >ext
        openssl x509 -req -in "$name.csr" -CA ca.pem -CAkey ca.key -CAcreateserial -days 90 -out "$name.pem" -extfile ext 2>/dev/null
        rm "$name.csr" ext
    done
    first=${1:-nobody}
    [ -s stray.pem ] || $new -x509 -keyout stray.key -out stray.pem -days 90 -subj "/O=Tidemill test/OU=${first%%/*}/CN=${first#*/}" 2>/dev/null
    cd - >/dev/null
}

configure() {
    port='' names='' definitions='' login=common_name
    while [ $# -ge 2 ]; do
        case $1 in
            --port) port=$2 ;;
            --names) names=$2 ;;
            --definitions) definitions=$(realpath "$2") ;;
            --login) login=$2 ;;
            *) usage ;;
        esac
        shift 2
    done
    [ $# -eq 0 ] || usage
    # shellcheck disable=SC2086
    certificates $names
    port=${port:-$(free_port)}
    [ -z "$definitions" ] || cp "$definitions" "$dir/definitions.json"
    cat >"$dir/rabbitmq.conf" <<END
listeners.tcp = none
listeners.ssl.1 = 127.0.0.1:$port
ssl_options.cacertfile = $dir/certs/ca.pem
ssl_options.certfile = $dir/certs/broker.pem
ssl_options.keyfile = $dir/certs/broker.key
ssl_options.verify = verify_peer
ssl_options.fail_if_no_peer_cert = true
ssl_options.versions.1 = tlsv1.3
ssl_options.versions.2 = tlsv1.2
ssl_cert_login_from = $login
auth_mechanisms.1 = EXTERNAL
disk_free_limit.absolute = 100MB
vm_memory_high_watermark.absolute = 512MB
${definitions:+load_definitions = $dir/definitions.json}
END
    echo "${RABBITMQ_ADVANCED:-[].}" >"$dir/advanced.config" # what rabbitmq.conf has no name for
    echo '[rabbitmq_auth_mechanism_ssl].' >"$dir/enabled_plugins"
    [ -s "$dir/.erlang.cookie" ] || openssl rand -hex 16 >"$dir/.erlang.cookie"
    chmod 0600 "$dir/.erlang.cookie"
    cat >"$dir/env.sh" <<END
export HOME=$dir RABBITMQ_NODENAME=tidemill$port@localhost RABBITMQ_MNESIA_BASE=$dir/mnesia RABBITMQ_LOG_BASE=$dir/log
export RABBITMQ_CONFIG_FILE=$dir/rabbitmq.conf RABBITMQ_ADVANCED_CONFIG_FILE=$dir/advanced.config
export RABBITMQ_ENABLED_PLUGINS_FILE=$dir/enabled_plugins RABBITMQ_PID_FILE=$dir/broker.pid
export RABBITMQ_CONF_ENV_FILE=/dev/null RABBITMQ_DIST_PORT=$((port + 1)) ERL_EPMD_PORT=$((port + 2)) ERL_EPMD_ADDRESS=127.0.0.1
export RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS="-kernel inet_dist_use_interface {127,0,0,1} +S 2:2 +sbwt none +sbwtdcpu none +sbwtdio none"
export PATH=$bin:\$PATH TIDEMILL_PORT=$port
END
}

answers() { # a whole TLS handshake with a client's certificate
    openssl s_client -connect "127.0.0.1:$TIDEMILL_PORT" -CAfile "$dir/certs/ca.pem" -cert "$dir/certs/broker.pem" -key "$dir/certs/broker.key" </dev/null
}

start() {
    [ -x $bin/rabbitmq-server ] || fail "there is no RabbitMQ in $bin; hint: apt-get install --no-install-recommends rabbitmq-server"
    mkdir -p "$dir/mnesia" "$dir/log"
    chmod 0700 "$dir"
    exec 9>"${XDG_RUNTIME_DIR:-/tmp}/.tidemill-rabbitmq.$(id -u)" # two that start at once would choose the same ports
    flock 9
    if [ ! -s "$dir/env.sh" ] || [ $# -gt 0 ]; then configure "$@"; fi
    if [ "$(id -u)" = 0 ]; then
        chown -R rabbitmq:rabbitmq "$dir"
        chown root "$dir"/certs/*.key # those of clients stay this user's
        chown rabbitmq "$dir/certs/broker.key"
    fi
    . "$dir/env.sh"
    rm -f "$dir/broker.pid"
    cd "$dir"
    if ! alive epmd; then
        detached "$dir/log/epmd" sh -c 'echo $$ >"$0" && exec epmd -port "$1" -address 127.0.0.1' "$dir/epmd.pid" "$ERL_EPMD_PORT" &
    fi
    detached "$dir/log/stdout" setsid rabbitmq-server &
    server=$!
    for _ in $(seq 450); do # a busy machine took 9 s
        if answers >/dev/null 2>&1; then
            echo "amqps://127.0.0.1:$TIDEMILL_PORT"
            exit 0
        fi
        kill -0 $server 2>/dev/null || break
        sleep 0.2
    done
    stop -KILL >/dev/null 2>&1 || true
    fail "RabbitMQ does not start: $(tail -20 "$dir/log/stdout")"
}

alive() { # NAME: its recorded process is still what it was
    pid=$(cat "$dir/$1.pid" 2>/dev/null) || return 1
    { tr '\0' ' ' <"/proc/${pid:-0}/cmdline"; } 2>/dev/null | grep -qE "$dir|epmd -port $((TIDEMILL_PORT + 2)) "
}

stop() { # SIGNAL NAME...
    [ -s "$dir/env.sh" ] || exit 0
    . "$dir/env.sh"
    number=$1
    shift
    for each in "$@"; do
        alive "$each" || continue
        kill "$number" "$pid"
        for _ in $(seq 300); do
            alive "$each" || break
            sleep 0.1
        done
        ! alive "$each" || kill -KILL "$pid"
        rm -f "$dir/$each.pid"
    done
}

case $verb in
    start) start "$@" ;;
    stop) stop -TERM broker epmd ;;
    crash) stop -KILL broker ;;
    ctl)
        . "$dir/env.sh"
        cd "$dir"
        as_owner rabbitmqctl "$@"
        ;;
    *) usage ;;
esac

# What the scripts of transfer services share; read by them with `.`, runs nothing itself.
#
# A service has a directory DIR: DIR/data is what it serves, DIR/port its port, kept from start to start, DIR/log what it
# says, DIR/pid its process. As root it runs as the user `nobody`, otherwise as the present user.
# shellcheck shell=sh

# Become the service's user and this program; for a subshell in the background, so that `$!` is the program.
become() {
    if [ "$(id -u)" = 0 ]; then
        exec setpriv --reuid=nobody --regid=nogroup --clear-groups env HOME="$dir" "$@"
    else
        exec "$@"
    fi
}

owner() {
    if [ "$(id -u)" = 0 ]; then echo nobody; else id -un; fi
}

own() {
    if [ "$(id -u)" = 0 ]; then chown -R nobody:nogroup "$@"; fi
}

# Whether a process listens on this port. It does not connect to find out: globus-gridftp-server 13.24 fails an assertion when a
# connection ends while it starts.
is_open() {
    cat /proc/net/tcp /proc/net/tcp6 2>/dev/null | grep -qi "^ *[0-9]*: [0-9A-F]*:$(printf '%04X' "$1") [0-9A-F:]* 0A "
}

# N ports of loopback that are free, one a line. Below those that the kernel gives to connections: a service that is
# killed could lose its port to any outgoing connection meanwhile.
free_ports() {
    python3 -c '
import random, socket, sys
low = int(open("/proc/sys/net/ipv4/ip_local_port_range").read().split()[0])
first, end = (10_000, low) if low > 12_000 else (61_000, 65_000)
held = []
while len(held) < int(sys.argv[1]):
    each = socket.socket()
    try:
        each.bind(("127.0.0.1", random.randrange(first, end)))
    except OSError:
        continue
    held.append(each)
    print(each.getsockname()[1])' "$1"
}

port_of() { # the port kept in DIR/NAME, chosen when there is none
    [ -s "$dir/$1" ] || free_ports 1 >"$dir/$1"
    cat "$dir/$1"
}

wait_open() { # PORT PID LOG...: until the port answers, a minute at most: a busy machine took over 10 s
    for _ in $(seq 600); do
        if is_open "$1"; then return 0; fi
        kill -0 "$2" 2>/dev/null || break
        sleep 0.1
    done
    shift 2
    for each in "$@"; do tail -n 20 "$each" >&2 2>/dev/null || true; done
    exit 3
}

end_by_pid() { # SIGNAL FILE WORD: end the process of this pid file, if it is still the program WORD
    pid=$(tr -d '\0\n' <"$2" 2>/dev/null) || return 0
    [ -n "$pid" ] && grep -qa "$3" "/proc/$pid/cmdline" 2>/dev/null || return 0
    kill "$1" "$pid" 2>/dev/null || return 0
    for _ in $(seq 100); do
        kill -0 "$pid" 2>/dev/null || return 0
        case $(cut -d' ' -f3 "/proc/$pid/stat" 2>/dev/null) in Z | '') return 0 ;; esac
        sleep 0.05
    done
    kill -KILL "$pid" 2>/dev/null || true
}

# A certification authority of one day for tests: DIR/ca.pem, hash links in DIR/trust (for X509_CERT_DIR, with the signing
# policy that GSI wants), and for each NAME a certificate DIR/NAME.pem with DIR/NAME.key. `host` is localhost's.
make_ca() { # DIR NAME...
    ca=$1
    shift
    mkdir -p "$ca/trust"
    [ -s "$ca/ca.pem" ] || openssl req -x509 -newkey rsa:2048 -nodes -keyout "$ca/ca.key" -out "$ca/ca.pem" -days 1 \
        -subj '/O=tidemill-tests/CN=CA' -addext 'keyUsage=critical,keyCertSign,cRLSign' 2>/dev/null
    hash=$(openssl x509 -hash -noout -in "$ca/ca.pem")
    cp "$ca/ca.pem" "$ca/trust/$hash.0"
    printf '%s\n' "access_id_CA X509 '/O=tidemill-tests/CN=CA'" 'pos_rights globus CA:sign' \
        "cond_subjects globus '\"/O=tidemill-tests/*\"'" >"$ca/trust/$hash.signing_policy"
    for name in "$@"; do
        [ ! -s "$ca/$name.pem" ] || continue
        cn=$name
        [ "$name" != host ] || cn=localhost
        printf 'subjectAltName=DNS:localhost,IP:127.0.0.1\nkeyUsage=critical,digitalSignature,keyEncipherment\n' >"$ca/ext"
        openssl req -newkey rsa:2048 -nodes -keyout "$ca/$name.key" -out "$ca/$name.csr" -subj "/O=tidemill-tests/CN=$cn" 2>/dev/null
        openssl x509 -req -in "$ca/$name.csr" -CA "$ca/ca.pem" -CAkey "$ca/ca.key" -CAcreateserial -days 1 -out "$ca/$name.pem" \
            -extfile "$ca/ext" 2>/dev/null
        chmod 600 "$ca/$name.key"
    done
}

#!/bin/sh
# Start or stop an Apache httpd of Debian's packages with WebDAV for tests and benches, on loopback, as an ordinary user.
#
#   scripts/webdav.sh start DIR    prints its https:// and http:// address; certificates are in DIR/certs
#   scripts/webdav.sh stop DIR     stops it; the data stay
#   scripts/webdav.sh crash DIR    kills it and its children with SIGKILL
#
# Of DIR/data it serves: /open to all, /denied to none, /cert to those with a certificate of DIR/certs/ca.pem,
# /token to those with the bearer token `sesame`, /slow as /open with 200 kB/s, /lies as /open with a wrong
# checksum. /near/X redirects to /open/X, /far/X to another host (WEBDAV_FAR, default https://127.0.0.2), /round/X to itself. As root it runs as the user `nobody`.
set -eu
cd "$(dirname "$0")"
here=$PWD
usage() {
    sed -n '2,11p' "$here/webdav.sh" >&2
    exit 2
}
[ $# -eq 2 ] || usage
verb=$1
dir=$(realpath -m "$2")
. ./service.sh
modules=/usr/lib/apache2/modules

configure() {
    cat <<END
ServerRoot $dir
ServerName localhost
PidFile $dir/httpd.pid
ErrorLog $dir/log
CustomLog $dir/access "\"%r\" %>s %b"
DefaultRuntimeDir $dir
Listen 127.0.0.1:$https
Listen 127.0.0.1:$http
$(for each in mpm_event authz_core authz_host dav dav_fs dav_lock ssl alias ratelimit headers env setenvif socache_shmcb; do
        [ ! -e "$modules/mod_$each.so" ] || echo "LoadModule ${each}_module $modules/mod_$each.so"
    done)
Mutex file:$dir
DavLockDB $dir/locks
DocumentRoot $dir/data
LimitRequestBody 0
LimitXMLRequestBody 1000000
MaxRequestWorkers 64
ThreadsPerChild 32
KeepAliveTimeout 15
ServerTokens Prod
AllowEncodedSlashes On
<Directory $dir/data>
    Dav On
    DavMinTimeout 60
    Require all granted
    Options None
</Directory>
Alias /slow $dir/data/open
<Location /slow>
    SetOutputFilter RATE_LIMIT
    SetEnv rate-limit 200
</Location>
Alias /lies $dir/data/open
<Location /lies>
    Header always set Digest "adler32=deadbeef"
</Location>
<Location /denied>
    Require all denied
</Location>
<Location /token>
    Require expr "%{HTTP:Authorization} == 'Bearer sesame'"
</Location>
<Location /cert>
    Require expr "%{SSL_CLIENT_VERIFY} == 'SUCCESS'"
</Location>
RedirectMatch 302 ^/near/(.*) /open/\$1
RedirectMatch 307 ^/far/(.*) ${WEBDAV_FAR:-https://127.0.0.2}/open/\$1
RedirectMatch 302 ^/round/(.*) /round/\$1
<VirtualHost 127.0.0.1:$https>
    SSLEngine on
    SSLCertificateFile $dir/certs/host.pem
    SSLCertificateKeyFile $dir/certs/host.key
    SSLCACertificateFile $dir/certs/ca.pem
    SSLVerifyClient optional
</VirtualHost>
END
}

start() {
    command -v apache2 >/dev/null || {
        echo "there is no program \`apache2\`; hint: apt-get install apache2-bin" >&2
        exit 3
    }
    for each in open denied cert token; do mkdir -p "$dir/data/$each"; done
    mkdir -p "$dir/certs"
    make_ca "$dir/certs" host user
    https=$(port_of https) http=$(port_of http)
    configure >"$dir/httpd.conf"
    own "$dir"
    rm -f "$dir/httpd.pid"
    become setsid apache2 -d "$dir" -f "$dir/httpd.conf" -D FOREGROUND </dev/null >"$dir/out" 2>&1 &
    echo $! >"$dir/pid"
    wait_open "$https" $! "$dir/out" "$dir/log"
    echo "https://localhost:$https/"
    echo "http://127.0.0.1:$http/"
}

end_all() { # SIGNAL
    group=$(cat "$dir/pid" 2>/dev/null) || exit 0
    end_by_pid "$1" "$dir/pid" apache2
    [ "$1" = -TERM ] || kill -KILL "-$group" 2>/dev/null || true
}

case $verb in
    start) start ;;
    stop) end_all -TERM ;;
    crash) end_all -KILL ;;
    *) usage ;;
esac

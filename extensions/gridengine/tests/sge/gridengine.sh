#!/bin/sh
# Start or stop a Grid Engine of Debian's packages for tests: a master and the daemons of nodes on this machine, as root, all of them with
# their jobs in a PID namespace of its own, so that nothing outlives it.
#
#   extensions/gridengine/tests/sge/gridengine.sh start DIR [OPTIONS]   prints the path of a file to source (SGE_ROOT, ports); DIR is created, or started again
#   extensions/gridengine/tests/sge/gridengine.sh stop DIR              ends everything at once; the state stays
#   extensions/gridengine/tests/sge/gridengine.sh crash DIR             kills the master with SIGKILL
#   extensions/gridengine/tests/sge/gridengine.sh master DIR            starts the master again
#
#   --nodes N (1)  --slots N (4)  --port BASE (free ones)  --notify S (10)
#
# With one node it is this host, with its network. More nodes are network namespaces with names n1, n2 ..., joined to this host
# by pairs of virtual devices; they reach this host as $(hostname -s), and nothing else.
# Queue `all.q`; parallel environments `node` (slots of one node), `nodes` (whole nodes: as many slots as a node has).
set -eu

usage() {
    sed -n '2,16p' "$0" >&2
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
cell=$dir/root/default/common
here=$(hostname -s)

until_s() { # SECONDS COMMAND...: waits for the command to succeed
    for _ in $(seq $(($1 * 20))); do
        if (shift && "$@") >/dev/null 2>&1; then return 0; fi
        sleep 0.05
    done
    return 1
}

ended() { # PID: it is gone, or dead and not yet waited for
    ! grep -qs '^State:[[:space:]]*[^ZX[:space:]]' "/proc/$1/status"
}

inside() { # a command in the cluster's namespaces
    init=$(cat "$dir/run/init" 2>/dev/null) || fail "no Grid Engine runs in $dir"
    nsenter -t "$init" -p -m "$@"
}

free_port() { # the first of two TCP ports in a row that are free, below the ephemeral ones
    used=$(awk 'FNR > 1 { split($2, a, ":"); print a[2] }' /proc/net/tcp /proc/net/tcp6 2>/dev/null | sort -u)
    for port in $(seq $((7000 + $$ % 100 * 10)) 2 9998); do
        hex=$(printf '%04X' "$port") next=$(printf '%04X' $((port + 1)))
        case $used in *$hex* | *$next*) ;; *) echo "$port" && return ;; esac
    done
    fail "no free ports between 7000 and 9998"
}

configure() {
    nodes=1 slots=4 port= notify=10
    while [ $# -ge 2 ]; do
        case $1 in
            --nodes) nodes=$2 ;;
            --slots) slots=$2 ;;
            --port) port=$2 ;;
            --notify) notify=$2 ;;
            *) usage ;;
        esac
        shift 2
    done
    [ $# -eq 0 ] || usage
    port=${port:-$(free_port)}
    cat >"$dir/env.sh" <<END
export SGE_ROOT=$dir/root SGE_CELL=default SGE_QMASTER_PORT=$port SGE_EXECD_PORT=$((port + 1))
END
    net=10.213.$((port % 250))
    echo "$net" >"$dir/etc/net"
    echo "$notify $slots" >"$dir/etc/queue"
    if [ "$nodes" = 1 ]; then echo "$here"; else seq -f 'n%.0f' 1 "$nodes"; fi >"$dir/etc/nodes"
    {
        echo "127.0.0.1 localhost"
        [ "$nodes" = 1 ] && echo "127.0.0.1 $here" || echo "$net.1 $here"
        [ "$nodes" = 1 ] || for each in $(seq "$nodes"); do echo "$net.$((10 + each)) n$each"; done
    } >"$dir/etc/hosts"
    for each in bin lib util utilbin; do ln -sfn "/var/lib/gridengine/$each" "$dir/root/$each"; done
    sed -e "s#^qmaster_spool_dir.*#qmaster_spool_dir       $dir/spool/qmaster#; s#^spooling_params.*#spooling_params         $dir/spool/db#" \
        -e "s#^admin_user.*#admin_user              none#; s#^ignore_fqdn.*#ignore_fqdn             true#" \
        /var/lib/gridengine/default/common/bootstrap >"$cell/bootstrap"
    echo "$here" >"$cell/act_qmaster"
    echo "$here localhost" >"$cell/host_aliases" # 127.0.0.1 is localhost
}

spool() { # the empty database
    lib=/usr/lib/gridengine share=/usr/share/gridengine
    $lib/spoolinit berkeleydb libspoolb "$dir/spool/db" init
    sed -e "s#^execd_spool_dir.*#execd_spool_dir              $dir/spool/execd#; s#^gid_range.*#gid_range                    65400-65500#" \
        -e "s#^min_uid.*#min_uid                      0#; s#^min_gid.*#min_gid                      0#; s#^load_report_time.*#load_report_time             00:00:01#" \
        $share/default-configuration >"$dir/etc/conf"
    sed -i "s#^execd_params.*#execd_params                 NOTIFY_KILL=default,ENABLE_ADDGRP_KILL=true#" "$dir/etc/conf"
    $lib/spooldefaults configuration "$dir/etc/conf"
    $lib/spooldefaults complexes $share/util/resources/centry
    $lib/spooldefaults usersets $share/util/resources/usersets
    $lib/spooldefaults managers root
}

environment() { # NAME RULE
    cat >"$dir/etc/pe.$1" <<END
pe_name            $1
slots              9999
user_lists         NONE
xuser_lists        NONE
start_proc_args    NONE
stop_proc_args     NONE
allocation_rule    $2
control_slaves     TRUE
job_is_first_task  FALSE
urgency_slots      min
accounting_summary FALSE
qsort_args         NONE
END
    qconf -Ap "$dir/etc/pe.$1"
}

tables() { # hosts, queue, scheduler
    read -r notify slots <"$dir/etc/queue"
    for each in "$here" $(cat "$dir/etc/nodes"); do
        qconf -ah "$each" || true
        qconf -as "$each" || true
    done
    qconf -sq all.q >/dev/null 2>&1 && return
    environment node "\$pe_slots"
    environment nodes "$slots"
    hosts=$(tr '\n' ' ' <"$dir/etc/nodes")
    qconf -sq | sed -e "s/^qname.*/qname all.q/; s/^hostlist.*/hostlist $hosts/; s/^slots.*/slots $slots/; s/^pe_list.*/pe_list node nodes/" \
        -e "s/^load_thresholds.*/load_thresholds NONE/; s#^shell .*#shell /bin/sh#; s/^shell_start_mode.*/shell_start_mode unix_behavior/" \
        -e "s/^notify.*/notify 00:00:$notify/" >"$dir/etc/all.q"
    qconf -Aq "$dir/etc/all.q"
    qconf -ssconf | sed -e 's/^schedule_interval.*/schedule_interval 0:0:1/; s/^flush_submit_sec.*/flush_submit_sec 1/' \
        -e 's/^flush_finish_sec.*/flush_finish_sec 1/; s/^max_reservation.*/max_reservation 100/; s/^default_duration.*/default_duration 1:0:0/' \
        -e 's/^job_load_adjustments.*/job_load_adjustments NONE/' >"$dir/etc/sched"
    qconf -Msconf "$dir/etc/sched"
}

join() { # NODE NUMBER: its daemon in namespaces of its own, its device joined to this host's
    net=$(cat "$dir/etc/net")
    rm -f "$dir/run/$1.joined"
    unshare -n -u sh -c "hostname $1; while [ ! -e '$dir/run/$1.joined' ]; do sleep 0.02; done; exec sge_execd" >"$dir/log/execd.$1" 2>&1 &
    node=$!
    until_s 5 sh -c "[ \"\$(readlink /proc/$node/ns/net)\" != \"\$(readlink /proc/self/ns/net)\" ]"
    device=tmge$(echo "$net" | cut -d. -f3)x$2
    ip link delete "$device" 2>/dev/null || true
    ip link add "$device" type veth peer name eth0 netns "$node"
    ip link set "$device" master "tmge$(echo "$net" | cut -d. -f3)" up
    nsenter -t "$node" -n sh -c "ip link set lo up; ip addr add $net.$((10 + $2))/24 dev eth0; ip link set eth0 up"
    : >"$dir/run/$1.joined"
}

daemons() { # runs as the first process of the namespace
    . "$dir/env.sh"
    export SGE_ND=1 # in the foreground: children of this process
    net=$(cat "$dir/etc/net")
    count=$(wc -l <"$dir/etc/nodes")
    if [ "$count" -gt 1 ]; then
        mount --bind "$dir/etc/hosts" /etc/hosts
        bridge=tmge$(echo "$net" | cut -d. -f3)
        ip link delete "$bridge" 2>/dev/null || true
        ip link add "$bridge" type bridge
        ip addr add "$net.1/24" dev "$bridge"
        ip link set "$bridge" up
    fi
    sge_qmaster >"$dir/log/qmaster" 2>&1 &
    echo $! >"$dir/run/qmaster.pid"
    until_s 20 qconf -sm || exit 3
    tables
    number=0
    while read -r node; do
        number=$((number + 1))
        if [ "$count" -gt 1 ]; then join "$node" $number; else sge_execd >"$dir/log/execd.$node" 2>&1 & fi
    done <"$dir/etc/nodes"
    : >"$dir/run/started"
    while :; do # waits for orphans, too
        sleep 1000 &
        wait $!
    done
}

all_up() {
    . "$dir/env.sh"
    read -r _ slots <"$dir/etc/queue"
    [ "$(qstat -f | grep -c "^all.q@.* 0/0/$slots  *[0-9]")" = "$(wc -l <"$dir/etc/nodes")" ]
}

start() {
    [ "$(id -u)" = 0 ] || fail "Grid Engine's daemons start jobs of other users: this needs root"
    for each in sge_qmaster sge_execd qsub; do
        command -v $each >/dev/null || fail "there is no $each; hint: apt-get install --no-install-recommends gridengine-master gridengine-exec gridengine-client"
    done
    mkdir -p "$dir/etc" "$dir/log" "$dir/run" "$cell" "$dir/spool/qmaster/job_scripts" "$dir/spool/execd" "$dir/spool/db"
    chmod 0755 "$dir"
    exec 9>/run/lock/tidemill-gridengine # two that start at once would choose the same ports
    flock 9
    if [ ! -s "$dir/env.sh" ] || [ $# -gt 0 ]; then configure "$@"; fi
    . "$dir/env.sh"
    [ -e "$dir/spool/db/sge" ] || spool >"$dir/log/spool" 2>&1 || fail "no database: $(tail -3 "$dir/log/spool")"
    rm -f "$dir/run/started"
    setsid unshare -pf --kill-child --mount-proc "$0" daemons "$dir" </dev/null >"$dir/log/daemons" 2>&1 9>&- &
    echo $! >"$dir/run/outer"
    until_s 10 grep -q . "/proc/$!/task/$!/children" || fail "unshare: $(tail -3 "$dir/log/daemons")"
    tr -d ' ' <"/proc/$!/task/$!/children" >"$dir/run/init"
    until_s 40 test -e "$dir/run/started" || fail "Grid Engine's daemons do not start: $(tail -5 "$dir/log/daemons")"
    until_s 60 all_up || fail "Grid Engine's nodes are not up: $(qstat -f 2>&1 | tail -5)"
    echo "$dir/env.sh"
}

stop() {
    outer=$(cat "$dir/run/outer" 2>/dev/null) || exit 0
    if tr '\0' ' ' <"/proc/$outer/cmdline" 2>/dev/null | grep -qF "daemons $dir"; then
        kill -KILL "$outer"
        until_s 10 ended "$outer" || fail "process $outer has not ended"
        until_s 10 ended "$(cat "$dir/run/init")" || fail "process $(cat "$dir/run/init") has not ended"
    fi
    [ "$(wc -l <"$dir/etc/nodes")" = 1 ] || ip link delete "tmge$(cut -d. -f3 "$dir/etc/net")" 2>/dev/null || true
    rm -f "$dir/run/outer" "$dir/run/init"
}

case $verb in
    start) start "$@" ;;
    daemons) daemons ;;
    stop) stop ;;
    crash)
        pid=$(cat "$dir/run/qmaster.pid")
        inside kill -KILL "$pid"
        until_s 5 sh -c "! nsenter -t $(cat "$dir/run/init") -p -m grep -qs '^State:[[:space:]]*[^ZX[:space:]]' /proc/$pid/status" || fail "process $pid has not ended"
        ;;
    master)
        . "$dir/env.sh"
        rm -f "$dir/spool/qmaster/qmaster.pid"
        SGE_ND=1 inside setsid sh -c 'sge_qmaster >>"$0/log/qmaster" 2>&1 9>&- & echo $! >"$0/run/qmaster.pid"' "$dir" </dev/null >/dev/null 2>&1
        until_s 30 qconf -sm || fail "the master does not answer: $(tail -3 "$dir/log/qmaster")"
        ;;
    *) usage ;;
esac

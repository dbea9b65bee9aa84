#!/bin/sh
# Start or stop a Slurm of Debian's packages for tests and benches: a controller and many node daemons on this machine, as root, all of
# them with their jobs in a PID namespace of their own, so that nothing outlives it. Jobs are submitted by ordinary users.
#
#   scripts/slurm.sh start DIR [OPTIONS]   prints the path of slurm.conf (set SLURM_CONF to it); DIR is created, or started again
#   scripts/slurm.sh stop DIR              ends everything at once; the state stays
#   scripts/slurm.sh crash DIR             kills the controller with SIGKILL
#   scripts/slurm.sh quit DIR              ends the controller in good order, so that it forgets nothing
#   scripts/slurm.sh controller DIR        starts the controller again
#   scripts/slurm.sh register DIR          makes every node register with the controller now
#   scripts/slurm.sh node-crash DIR NODE   kills a node's daemon with SIGKILL; its jobs run on unseen
#   scripts/slurm.sh node DIR NODE         starts a node's daemon again
#
#   --nodes N (4)  --cores N (2)  --memory MB (4000)  --port BASE (free ones)  --accounting none|filetxt|slurmdbd=DIR (none)
#   --preempt off|cancel|requeue (off)  --grace S (0)  --kill-wait S (3)  --bf-interval S (1)  --min-job-age S (300)
#   --line KEY=VALUE   replaces or adds a line of slurm.conf; may be repeated
#   --gpu-nodes N (0)  N more nodes, g1 g2 ..., with two GPUs each (empty files as devices)
#   --partition "NAME KEYS"   instead of those below, and without features; may be repeated, the first is the default
#   --reach PATH       jobs see this folder although it lies below one that is closed to them, such as an interpreter in /root
#
# Partitions, each of all nodes: `batch` (default, whole nodes), `preempt` (lower tier, whole nodes, preempted by the others), `shared`
# (cores). Features: `left` on the first half of the nodes, `right` on the second; names are n1, n2 ... with leading zeros.
# DIR should be short: a socket path has at most 107 bytes.
set -eu

usage() {
    sed -n '2,24p' "$0" >&2
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
conf=$dir/etc/slurm.conf

inside() { # a command in the cluster's namespaces
    init=$(cat "$dir/run/init" 2>/dev/null) || fail "no Slurm runs in $dir"
    nsenter -t "$init" -p -m env SLURM_CONF="$conf" "$@"
}

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

free_ports() { # COUNT: the first of COUNT TCP ports in a row that are free, below the ephemeral ones
    used=$(awk 'FNR > 1 { split($2, a, ":"); print a[2] }' /proc/net/tcp /proc/net/tcp6 2>/dev/null | sort -u)
    base=$((12000 + $$ % 100 * 200))
    for _ in $(seq 100); do
        clear=yes
        for each in $used; do
            port=$((0x$each))
            if [ "$port" -ge "$base" ] && [ "$port" -lt $((base + $1)) ]; then clear=; fi
        done
        if [ -n "$clear" ]; then
            echo "$base"
            return
        fi
        base=$((base + $1 + 7))
        if [ $((base + $1)) -gt 32000 ]; then base=12000; fi
    done
    fail "no $1 free ports in a row between 12000 and 32000"
}

names() { # of nodes FROM to TO, as Slurm and as seq write them
    printf 'n[%s-%s]' "$(printf "%0${width}d" "$1")" "$(printf "%0${width}d" "$2")"
}

nodes_and_partitions() { # their lines of slurm.conf
    left=' Feature=left' right=' Feature=right'
    if [ -s "$dir/etc/partitions" ]; then left='' right=''; fi
    if [ "$half" -gt 0 ]; then
        echo "NodeName=$(names 1 $half) $host Port=[$((port + 1))-$((port + half))]$left $shape"
    fi
    if [ "$nodes" -gt "$half" ]; then
        echo "NodeName=$(names $((half + 1)) "$nodes") $host Port=[$((port + half + 1))-$((port + nodes))]$right $shape"
    fi
    if [ "$gpu_nodes" -gt 0 ]; then
        echo "GresTypes=gpu"
        echo "NodeName=g[1-$gpu_nodes] $host Port=[$((port + nodes + 1))-$((port + nodes + gpu_nodes))] Gres=gpu:2 $shape"
    fi
    if [ -s "$dir/etc/partitions" ]; then
        sed 's/^/PartitionName=/; s/$/ Nodes=ALL State=UP/; 1s/$/ Default=YES/' "$dir/etc/partitions"
        return
    fi
    common="Nodes=ALL MaxTime=1-0 DefaultTime=10 State=UP"
    echo "PartitionName=batch Default=YES OverSubscribe=EXCLUSIVE PriorityTier=10 PreemptMode=off $common"
    echo "PartitionName=preempt OverSubscribe=EXCLUSIVE PriorityTier=1 PreemptMode=$mode GraceTime=$grace $common"
    echo "PartitionName=shared OverSubscribe=NO PriorityTier=10 PreemptMode=off $common"
}

configure() {
    nodes=4 cores=2 memory=4000 port= accounting=none preempt=off grace=0 kill_wait=3 bf_interval=1 min_job_age=300 gpu_nodes=0
    : >"$dir/etc/lines"
    : >"$dir/etc/partitions"
    : >"$dir/etc/reach"
    while [ $# -ge 2 ]; do
        case $1 in
            --nodes) nodes=$2 ;;
            --cores) cores=$2 ;;
            --memory) memory=$2 ;;
            --port) port=$2 ;;
            --accounting) accounting=$2 ;;
            --preempt) preempt=$2 ;;
            --grace) grace=$2 ;;
            --kill-wait) kill_wait=$2 ;;
            --bf-interval) bf_interval=$2 ;;
            --min-job-age) min_job_age=$2 ;;
            --line) echo "$2" >>"$dir/etc/lines" ;;
            --gpu-nodes) gpu_nodes=$2 ;;
            --partition) echo "$2" >>"$dir/etc/partitions" ;;
            --reach) echo "$2" >>"$dir/etc/reach" ;;
            *) usage ;;
        esac
        shift 2
    done
    [ $# -eq 0 ] || usage
    port=${port:-$(free_ports $((nodes + gpu_nodes + 1)))}
    width=${#nodes}
    half=$(((nodes + 1) / 2))
    case $preempt in
        off) preemption="PreemptType=preempt/none" mode=off ;;
        *) mode=$preempt preemption="PreemptType=preempt/partition_prio
PreemptMode=$preempt
SlurmctldParameters=preempt_send_user_signal" ;;
    esac
    storage=accounting_storage/none
    case $accounting in
        none) completion="JobCompType=jobcomp/none" ;;
        filetxt) completion="JobCompType=jobcomp/filetxt
JobCompLoc=$dir/log/completed" ;;
        slurmdbd=*) # of scripts/slurmdbd.sh: it has the cluster's key, because either side checks the other's credentials
            database=$(realpath -m "${accounting#*=}")
            storage=accounting_storage/slurmdbd completion="JobCompType=jobcomp/none
AccountingStorageHost=127.0.0.1
AccountingStoragePort=$(cat "$database/port")
AccountingStoragePass=$database/run/munge/sock"
            cp "$database/munge/key" "$dir/munge/key"
            ;;
        *) usage ;;
    esac
    shape="CPUs=$cores Boards=1 SocketsPerBoard=1 CoresPerSocket=$cores ThreadsPerCore=1 RealMemory=$memory State=UNKNOWN"
    host="NodeHostname=$(hostname -s) NodeAddr=127.0.0.1"
    {
        cat <<END
ClusterName=tidemill
SlurmctldHost=$(hostname -s)(127.0.0.1)
SlurmctldPort=$port
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$dir/run/munge/sock,cred_expire=10
CredType=cred/munge
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool/%n
SlurmctldPidFile=$dir/run/slurmctld.pid
SlurmdPidFile=$dir/run/slurmd.%n.pid
SlurmctldLogFile=$dir/log/slurmctld.log
SlurmdLogFile=$dir/log/slurmd.%n.log
SlurmctldDebug=info
SlurmdDebug=info
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
SlurmdTimeout=60
SlurmctldTimeout=30
KillWait=$kill_wait
UnkillableStepTimeout=120
MinJobAge=$min_job_age
InactiveLimit=0
MaxJobCount=50000
MaxArraySize=10001
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=$bf_interval,bf_resolution=1,bf_window=1440,bf_max_job_test=1000,bf_continue,sched_interval=5,sched_min_interval=50000,batch_sched_delay=0,default_queue_depth=1000
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
PriorityType=priority/basic
JobRequeue=1
AccountingStorageType=$storage
$completion
$preemption
END
        nodes_and_partitions
    } >"$conf"
    while IFS= read -r line; do
        case $line in
            NodeName=* | PartitionName=*) ;;
            *) sed -i "/^${line%%=*}=/d" "$conf" ;;
        esac
        echo "$line" >>"$conf"
    done <"$dir/etc/lines"
    # Nothing here uses cgroups; without this, slurmd of 22.05 looks for their file system and ends where there is none
    echo CgroupPlugin=cgroup/v1 >"$dir/etc/cgroup.conf"
    seq -f "n%0${width}.0f" 1 "$nodes" >"$dir/etc/nodes"
    [ "$gpu_nodes" -gt 0 ] || return 0
    seq -f 'g%.0f' 1 "$gpu_nodes" >>"$dir/etc/nodes"
    mkdir -p "$dir/dev"
    : >"$dir/dev/gpu0"
    : >"$dir/dev/gpu1"
    echo "NodeName=g[1-$gpu_nodes] Name=gpu File=$dir/dev/gpu[0-1]" >"$dir/etc/gres.conf"
}

closed_above() { # PATH: the highest folder above it that others may not enter
    below=$1 found=
    while [ "$below" != / ]; do
        below=$(dirname "$below")
        case $(stat -c %A "$below") in *x | *t) ;; *) found=$below ;; esac
    done
    [ -z "$found" ] || echo "$found"
}

reach() { # PATH: in this mount namespace, the folder at its path and nothing else below the closed one
    closed=$(closed_above "$1")
    [ -n "$closed" ] || return 0
    mkdir -p "$dir/run/reach"
    mount --bind "$1" "$dir/run/reach"
    mount -t tmpfs -o mode=0755 tidemill "$closed"
    mkdir -p "$1"
    mount --bind "$dir/run/reach" "$1"
}

daemons() { # runs as the first process of the namespace
    while read -r path; do reach "$path"; done <"$dir/etc/reach"
    munged --force --key-file="$dir/munge/key" --socket="$dir/run/munge/sock" --pid-file="$dir/run/munged.pid" \
        --log-file="$dir/log/munged.log" --seed-file="$dir/munge/seed" --num-threads=4
    slurmctld
    while read -r node; do
        mkdir -p "$dir/spool/$node"
        slurmd -N "$node"
    done <"$dir/etc/nodes"
    : >"$dir/run/started"
    while :; do # waits for orphans, too
        sleep 1000 &
        wait $!
    done
}

all_answer() { # jobs of an earlier start may be there, and run again
    SLURM_CONF=$conf sinfo -h -a -N -o '%N %t' | awk '$2 !~ /^(unk|down|boot|fail)|[*]$/ { print $1 }' | sort -u >"$dir/run/answer"
    [ "$(wc -l <"$dir/run/answer")" = "$(wc -l <"$dir/etc/nodes")" ]
}

start() {
    [ "$(id -u)" = 0 ] || fail "Slurm's daemons start jobs of other users: this needs root"
    for each in munged slurmctld slurmd sbatch; do
        command -v $each >/dev/null || fail "there is no $each; hint: apt-get install --no-install-recommends slurm-wlm munge"
    done
    mkdir -p "$dir/etc" "$dir/log" "$dir/run/munge" "$dir/state" "$dir/spool" "$dir/munge"
    chmod 0755 "$dir" "$dir/run" "$dir/run/munge"
    chmod 0700 "$dir/munge"
    [ -s "$dir/munge/key" ] || (umask 077 && head -c 1024 /dev/urandom >"$dir/munge/key")
    exec 9>/run/lock/tidemill-slurm # two that start at once would choose the same ports
    flock 9
    if [ ! -s "$conf" ] || [ $# -gt 0 ]; then configure "$@"; fi
    rm -f "$dir/run/started" "$dir"/run/*.pid
    SLURM_CONF=$conf setsid unshare -pf --kill-child --mount-proc "$0" daemons "$dir" </dev/null >"$dir/log/daemons.log" 2>&1 9>&- &
    echo $! >"$dir/run/outer"
    until_s 10 grep -q . "/proc/$!/task/$!/children" || fail "unshare: $(tail -3 "$dir/log/daemons.log")"
    tr -d ' ' <"/proc/$!/task/$!/children" >"$dir/run/init"
    until_s 30 test -e "$dir/run/started" || fail "Slurm's daemons do not start: $(tail -5 "$dir/log/daemons.log")"
    until_s 30 all_answer || fail "Slurm's nodes do not answer: $(SLURM_CONF=$conf sinfo 2>&1); $(tail -5 "$dir/log/slurmctld.log")"
    echo "$conf"
}

stop() {
    outer=$(cat "$dir/run/outer" 2>/dev/null) || exit 0
    if tr '\0' ' ' <"/proc/$outer/cmdline" 2>/dev/null | grep -qF "daemons $dir"; then
        kill -KILL "$outer"
        until_s 10 ended "$outer" || fail "process $outer has not ended"
        until_s 10 ended "$(cat "$dir/run/init")" || fail "process $(cat "$dir/run/init") has not ended"
    fi
    rm -f "$dir/run/outer" "$dir/run/init"
}

register() {
    for each in "$dir"/run/slurmd.*.pid; do
        inside kill -HUP "$(cat "$each")" || true
    done
}

kill_inside() {
    pid=$(cat "$dir/run/$2.pid") || fail "$2 does not run in $dir"
    inside kill "$1" "$pid" || fail "$2 does not run in $dir"
    until_s 20 sh -c "! nsenter -t $(cat "$dir/run/init") -p -m kill -0 $pid"
}

case $verb in
    start) start "$@" ;;
    daemons) daemons ;;
    stop) stop ;;
    crash) kill_inside -KILL slurmctld ;;
    quit) kill_inside -TERM slurmctld ;;
    controller)
        inside slurmctld 9>&-
        until_s 20 env SLURM_CONF="$conf" sinfo -h || fail "the controller does not answer: $(tail -3 "$dir/log/slurmctld.log")"
        register # one that forgot the nodes asks them a minute later
        ;;
    register) register ;;
    node-crash) kill_inside -KILL "slurmd.${1:?node}" ;;
    node) inside slurmd -N "${1:?node}" ;;
    *) usage ;;
esac

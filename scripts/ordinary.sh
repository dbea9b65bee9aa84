#!/bin/sh
# Start or stop a Slurm as universities run it, as root, for tests and to try Tidemill by hand: shared nodes, two partitions, two GPU nodes,
# accounting with associations, and another user whose jobs are everywhere. Network, mounts and processes are its own, so that several
# run beside each other. Users are `ada` (account atlas), who has nothing yet, and `bob` (account cms), whose jobs come from `regular`.
#
#   scripts/ordinary.sh start DIR [OPTIONS]   starts it; DIR is created, or started again; OPTIONS as scripts/slurm.sh takes them
#   scripts/ordinary.sh stop DIR              ends every process in it at once; the state stays
#   scripts/ordinary.sh enter DIR USER [COMMAND...]   a command of ada, bob or root there, in DIR/home/USER; default: a shell
#   scripts/ordinary.sh regular DIR [--seconds S] [NODE|NUMBER...]
#       from now on bob keeps one job of 5 cores and 6 GB on each NODE, and NUMBER of them wherever Slurm starts them; his other
#       jobs of this kind end. A job takes S seconds (3600), then the next one comes.
#
# Six nodes of 8 cores and 16 GB: n1-n4, and g1-g2 with two GPUs each (empty files as devices). A job of 5 cores leaves 3 free: no two fit
# on a node. Partitions `short` (2 h, default) and `long` (7 days). DIR should be short: a socket path has at most 107 bytes. Others have
# to be able to enter it, and a payload sees no folder below /tmp but its own.
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
here=$(cd "$(dirname "$0")" && pwd)
verb=$1
dir=$(realpath -m "$2")
shift 2
conf=$dir/c/etc/slurm.conf
ADA=20001 BOB=20002

uid_of() {
    case $1 in
        ada) echo $ADA ;;
        bob) echo $BOB ;;
        root) echo 0 ;;
        *) fail "the users are ada, bob and root" ;;
    esac
}

as() { # USER COMMAND...: for a process that is inside already
    uid=$(uid_of "$1")
    name=$1
    shift
    cd "$dir/home/$name"
    exec setpriv --reuid="$uid" --regid="$uid" --clear-groups env -u XDG_RUNTIME_DIR HOME="$dir/home/$name" USER="$name" \
        LOGNAME="$name" SHELL=/bin/bash SLURM_CONF="$conf" "$@"
}

enter() { # USER COMMAND...
    init=$(cat "$dir/run/init" 2>/dev/null) || fail "no cluster runs in $dir"
    nsenter -t "$init" -n -m -p "$here/ordinary.sh" as "$dir" "$@"
}

people() { # who is known inside
    mkdir -p "$dir/etc" "$dir/run" "$dir/log" "$dir/home" "$dir/load"
    chmod 0755 "$dir" "$dir/etc" "$dir/run" "$dir/home"
    cp /etc/passwd "$dir/etc/passwd"
    cp /etc/group "$dir/etc/group"
    for name in ada bob; do
        uid=$(uid_of $name)
        sed -i "/^$name:/d" "$dir/etc/passwd" "$dir/etc/group"
        echo "$name:x:$uid:$uid::$dir/home/$name:/bin/bash" >>"$dir/etc/passwd"
        echo "$name:x:$uid:" >>"$dir/etc/group"
        mkdir -p "$dir/home/$name"
        chown "$uid:$uid" "$dir/home/$name"
        chmod 0755 "$dir/home/$name"
    done
    mkdir -p "$dir/home/root"
}

start() {
    [ "$(id -u)" = 0 ] || fail "Slurm's daemons start jobs of other users: this needs root"
    command -v ip >/dev/null || fail "there is no ip; hint: apt-get install --no-install-recommends iproute2"
    people
    rm -f "$dir/run/started" "$dir/run/failed"
    setsid unshare -n -m -p -f --kill-child --mount-proc "$here/ordinary.sh" daemons "$dir" "$@" </dev/null >"$dir/log/daemons" 2>&1 &
    outer=$!
    echo $outer >"$dir/run/outer"
    for _ in $(seq 1800); do # MariaDB makes its tables first: 10 s on an idle machine
        [ ! -e "$dir/run/started" ] || break
        kill -0 $outer 2>/dev/null || fail "the cluster does not start: $(tail -5 "$dir/log/daemons")"
        sleep 0.1
    done
    [ -e "$dir/run/started" ] || fail "the cluster does not start: $(tail -5 "$dir/log/daemons")"
    tr -d ' ' <"/proc/$outer/task/$outer/children" >"$dir/run/init"
    echo "$conf"
}

network() { # loopback, and an address that is not loopback: kernels without `dummy` have `veth`
    ip link set lo up
    ip link add tm0 type dummy 2>/dev/null || ip link add tm0 type veth peer name tm1
    ip address add 10.77.0.1/24 dev tm0
    ip link set tm0 up
    ip link set tm1 up 2>/dev/null || true
}

accounts() { # also where they are there already
    export SLURM_CONF="$dir/d/etc/slurm.conf"
    sacctmgr -i -Q add account atlas cms cluster=tidemill || true
    sacctmgr -i -Q add user ada account=atlas cluster=tidemill || true
    sacctmgr -i -Q add user bob account=cms cluster=tidemill || true
    unset SLURM_CONF
}

daemons() { # the first process inside
    network
    mount --bind "$dir/etc/passwd" /etc/passwd
    mount --bind "$dir/etc/group" /etc/group
    "$here/slurmdbd.sh" start "$dir/d"
    accounts
    "$here/slurm.sh" start "$dir/c" --nodes 4 --gpu-nodes 2 --cores 8 --memory 16000 --accounting "slurmdbd=$dir/d" \
        --partition "short MaxTime=2:00:00 DefaultTime=0:30:00 OverSubscribe=NO PriorityJobFactor=10" \
        --partition "long MaxTime=7-0 DefaultTime=12:00:00 OverSubscribe=NO PriorityJobFactor=1" \
        --line SelectTypeParameters=CR_Core_Memory --line DefMemPerCPU=1900 \
        --line PriorityType=priority/multifactor --line PriorityWeightAge=1000 --line PriorityWeightFairshare=10000 \
        --line AccountingStorageEnforce=associations,limits --line AccountingStorageTRES=gres/gpu \
        --line JobAcctGatherType=jobacct_gather/linux "$@"
    : >"$dir/run/started"
    while :; do # also waits for orphans
        round || true
        sleep 1 &
        wait $!
    done
}

bob() (as bob "$@")

round() { # inside: of bob's jobs called r-NAME those that are wanted run or wait, and no others
    [ -s "$dir/load/wanted" ] || return 0
    exec 8>"$dir/load/lock"
    flock 8
    bob squeue -h -u bob -t PD,CF,R,S,ST -o %j >"$dir/load/have" || return 0
    grep '^r-' "$dir/load/have" | while read -r job; do
        grep -q "^$job " "$dir/load/wanted" || bob scancel -n "$job" 8>&-
    done
    partition=short
    grep '^r-' "$dir/load/wanted" | while read -r job seconds; do
        if [ $partition = short ] && [ "$seconds" -lt 6000 ]; then partition=long; else partition=short; fi
        if grep -qxF "$job" "$dir/load/have"; then continue; fi
        case ${job#r-} in [0-9]*) node='' ;; *) node="-w ${job#r-}" ;; esac
        # shellcheck disable=SC2086 # two words or none
        bob sbatch -Q -J "$job" -p $partition -t $((seconds / 60 + 5)) -c 5 --mem=6000 $node -o /dev/null --chdir=/ \
            --wrap "sleep $seconds" >/dev/null 8>&-
    done
}

regular() { # what is wanted is written whole, so that no round sees half of it
    seconds=3600
    if [ "${1-}" = --seconds ]; then
        seconds=$2
        shift 2
    fi
    echo '# a job of bob and its seconds, one a line' >"$dir/load/new"
    for each; do
        case $each in
            *[!0-9]*) echo "r-$each $seconds" ;;
            *) seq -f "r-%.0f $seconds" 1 "$each" ;;
        esac >>"$dir/load/new"
    done
    mv "$dir/load/new" "$dir/load/wanted"
    init=$(cat "$dir/run/init" 2>/dev/null) || fail "no cluster runs in $dir"
    nsenter -t "$init" -n -m -p "$here/ordinary.sh" round "$dir"
}

stop() {
    outer=$(cat "$dir/run/outer" 2>/dev/null) || exit 0
    if tr '\0' ' ' <"/proc/$outer/cmdline" 2>/dev/null | grep -qF "daemons $dir"; then
        kill -KILL "$outer"
        for _ in $(seq 200); do # until the last one in it has ended
            grep -qs '^State:[[:space:]]*[^ZX[:space:]]' "/proc/$outer/status" "/proc/$(cat "$dir/run/init")/status" || break
            sleep 0.05
        done
    fi
    rm -f "$dir/run/outer" "$dir/run/init"
}

case $verb in
    start) start "$@" ;;
    daemons) daemons "$@" ;;
    stop) stop ;;
    enter)
        [ $# -ge 1 ] || usage
        [ $# -gt 1 ] || set -- "$1" bash
        enter "$@"
        ;;
    as) as "$@" ;;
    regular) regular "$@" ;;
    round) round ;;
    *) usage ;;
esac

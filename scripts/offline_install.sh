#!/bin/sh
# Installs Tidemill @VERSION@ from this one file: no network, no root, no compiler. What follows the last line of this script is an
# archive of Python packages for x86_64 and aarch64.
#
#   sh tidemill-@VERSION@-offline.sh [--dir DIR] [--python PYTHON]
#
#   --dir DIR         where to install (default: ~/.local/share/tidemill); each version gets a folder of its own in it
#   --python PYTHON   the Python to use, 3.11 or later (default: the newest on PATH)
#   --check           verify this file and name the Python that would be used; install nothing
set -eu
# Whatever the umask is: under 002 a project's group could change the programs, under 077 other users could not run them.
umask 022

VERSION=@VERSION@
SHA256=@SHA256@
LINES=@LINES@
EXTRAS=@EXTRAS@
PYTHONS='python3.15 python3.14 python3.13 python3.12 python3.11 python3'

fail() { # the sentence, then hints
    echo "error: $1" >&2
    shift
    for hint in "$@"; do echo "hint: $hint" >&2; done
    exit 2
}

suffices() { # is this a Python that Tidemill runs on?
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
}

dir=${HOME:-}/.local/share/tidemill
python=
only_check=
while [ $# -gt 0 ]; do
    case $1 in
    --dir | --python)
        [ $# -ge 2 ] || fail "$1 needs a value"
        if [ "$1" = --dir ]; then dir=$2; else python=$2; fi
        shift
        ;;
    --check) only_check=yes ;;
    -h | --help)
        sed -n '2,9s/^# \{0,1\}//p' "$0"
        exit 0
        ;;
    *) fail "unknown option \`$1\`" "sh $0 --help lists the options" ;;
    esac
    shift
done
case $dir in
/*) ;;
*) dir=$PWD/$dir ;;
esac

case $(uname -s)-$(uname -m) in
Linux-x86_64 | Linux-aarch64) ;;
*) fail "this file has programs for Linux on x86_64 and aarch64; this machine is $(uname -s) on $(uname -m)" ;;
esac

found=$(tail -n "+$LINES" "$0" | sha256sum | cut -d ' ' -f 1)
[ "$found" = "$SHA256" ] || fail "$0 is damaged: the archive in it has SHA-256 $found, not $SHA256" 'copy the file again'

if [ -n "$python" ]; then
    suffices "$python" || fail "$python is not Python 3.11 or later"
else
    for each in $PYTHONS; do
        if command -v "$each" >/dev/null && suffices "$each"; then
            python=$(command -v "$each")
            break
        fi
    done
    [ -n "$python" ] || fail "no Python 3.11 or later on PATH (tried: $PYTHONS)" \
        'many centres have one as a module: run `module avail python`, load it, and start this again' \
        'with conda: `conda create -n tidemill python=3.12`, then name its Python with --python' \
        "else ask the centre's support for Python 3.11 or later"
fi
# Of a virtual environment, take the Python that it was made from: it stays when the environment goes, which may be an earlier Tidemill's.
python=$("$python" -c 'import sys; print(getattr(sys, "_base_executable", None) or sys.executable)')
"$python" -c 'import venv, ssl, sqlite3' 2>/dev/null || fail "$python lacks the module venv, ssl or sqlite3" \
    'on Debian and Ubuntu the package python3-venv has venv; a Python of the centre or of conda has all three'
if [ -n "$only_check" ]; then
    echo "whole; would install Tidemill $VERSION into $dir/$VERSION with $python ($("$python" -V))"
    exit 0
fi

echo "unpacking Tidemill $VERSION for $("$python" -V) ..."
mkdir -p "$dir"
work=$(mktemp -d "$dir/.install-XXXXXX")
place=$dir/$VERSION
finish() { # what was there before comes back, unless it was replaced
    if [ -d "$work/before" ]; then
        rm -rf "$place"
        mv "$work/before" "$place"
    fi
    rm -rf "$work"
}
trap finish EXIT
trap 'exit 130' INT TERM HUP
tail -n "+$LINES" "$0" | tar -xzf - -C "$work" || fail "cannot unpack into $work" "check the space and your quota there: the packages need $(($(wc -c <"$0") / 500000)) MB"
for pip in "$work"/wheels/pip-*.whl; do :; done

# A second run repairs the version; another version stays beside it until you delete it.
[ ! -d "$place" ] || mv "$place" "$work/before"
echo "making its environment in $place ..."
"$python" -m venv --without-pip "$place" || fail "$python -m venv $place failed"
echo 'installing its packages (up to a minute) ...'
PYTHONPATH=$pip PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_CONFIG_FILE=/dev/null "$place/bin/python" -m pip install --quiet --no-cache-dir --no-index \
    --find-links "$work/wheels" "tidemill[$EXTRAS]==$VERSION" || {
    rm -rf "$place"
    fail "pip could not install the packages of this file with $("$python" -V)" \
        "this file has packages for Python @PYTHONS@; name one of these with --python"
}
echo 'starting it once ...'
"$place/bin/tidemill" --version >/dev/null || fail "$place/bin/tidemill does not start" "run it to see why"
"$place/bin/tidemill-node" --version >/dev/null || fail "$place/bin/tidemill-node does not start" "is $dir mounted noexec? choose another --dir"
# Only these two go on PATH: the environment's own `python` would hide the user's.
mkdir "$place/commands"
ln -s ../bin/tidemill ../bin/tidemill-node "$place/commands"
ln -sfn "$VERSION/commands" "$dir/.bin-$$" && mv -T "$dir/.bin-$$" "$dir/bin"
rm -rf "$work/before"

echo "installed $("$place/bin/tidemill" --version) into $place"
echo
echo "  export PATH=$dir/bin:\$PATH      # add this line to ~/.bashrc"
echo "  tidemill doctor                  # what this machine allows"
echo "  tidemill site init               # then, on a cluster: your own site, which submits nothing yet"
exit 0

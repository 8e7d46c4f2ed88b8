# shellcheck shell=bash
# What every script needs before its own work: --help, the root of the checkout and a private
# virtual environment at .venv. Sourced, never run; refuses to do anything beyond that.

set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
VENV=$ROOT/.venv
PYTHON=$VENV/bin/python

die() {
    printf '%s: %s\n' "scripts/$(basename "$0")" "$1" >&2
    exit "${2:-1}"
}

# Print the comment at the head of the calling script where --help was asked for. Comes before
# the environment is made: nobody should wait for an installation to read a page.
help_if_asked() {
    local argument
    for argument in "$@"; do
        case $argument in
        -h | --help)
            sed -n '2,${ /^#/!q; s/^# \{0,1\}//; p; }' "$0"
            exit 0
            ;;
        esac
    done
}

find_python() {
    local name
    for name in python3.11 python3.12 python3.13 python3; do
        if "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            command -v "$name"
            return
        fi
    done
    die 'needs Python 3.11 or newer, and found none: on Debian or Ubuntu apt-get install python3 python3-venv'
}

# Make .venv, or bring it up to date when what it is made from has changed since.
ensure_venv() {
    local stamp log python began
    stamp=$(cd "$ROOT" && cat setup.cfg pyproject.toml scripts/lib/start.sh | cksum)
    if [ "$stamp" = "$(cat "$VENV/stamp" 2>/dev/null)" ] && "$PYTHON" -c '' 2>/dev/null; then
        return
    fi
    mkdir -p "$VENV"
    # Two scripts started at once must not install into each other.
    if command -v flock >/dev/null; then
        exec 9>"$VENV/lock"
        flock 9
        if [ "$stamp" = "$(cat "$VENV/stamp" 2>/dev/null)" ]; then
            exec 9>&-
            return
        fi
    fi
    python=$(find_python) || exit 1
    log=$VENV/install.log
    began=$SECONDS
    printf 'Installing what it needs into .venv; the first time takes a minute or two ...' >&2
    # Run as a condition so that a failure is told in our words.
    if ! install_venv "$python" >"$log" 2>&1 </dev/null; then
        printf ' failed\n' >&2
        tail -n 15 "$log" >&2
        die "could not install; all of it is in $log"
    fi
    printf ' done in %d s\n' "$((SECONDS - began))" >&2
    printf '%s' "$stamp" >"$VENV/stamp"
    if command -v flock >/dev/null; then exec 9>&-; fi
}

install_venv() {
    rm -f "$VENV/stamp"
    "$1" -c 'import ensurepip' || {
        echo 'this Python has no venv: on Debian or Ubuntu apt-get install python3-venv'
        return 1
    }
    "$1" -m venv "$VENV" || return 1
    "$PYTHON" -m pip install --progress-bar off --disable-pip-version-check \
        --editable "${ROOT}[embedded,test,dev]"
}

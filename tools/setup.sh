#!/bin/sh
# Makes .venv, or brings it up to date, and installs convloom there (editable).
#
#   tools/setup.sh         what training needs
#   tools/setup.sh test    and what the tests need
#
# $PYTHON names the interpreter to use; without it, the first of python3, python3.13, python3.12
# and python3.11 that is new enough. Where no C++ compiler is found, the ziglang wheel is installed
# to serve as one. constraints.txt fixes every version.
set -eu
cd "$(dirname "$0")/.."

say() { printf 'setup: %s\n' "$*"; }
fail() {
    printf 'setup: error: %s\n' "$*" >&2
    exit 1
}

new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

find_python() {
    found=
    for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11}; do
        command -v "$candidate" >/dev/null 2>&1 || continue
        if new_enough "$candidate"; then
            python=$candidate
            return
        fi
        found="$found $candidate ($("$candidate" --version 2>&1 || echo unusable))"
    done
    [ -z "$found" ] || fail "convloom needs Python 3.11 or newer; found only$found." \
        "Install a newer one and name it: make PYTHON=/path/to/python3.12 ..."
    fail "no ${PYTHON:-python3} on PATH. As root: apt-get install make python3-venv"
}

# A copied or moved folder, or a Python that was upgraded away, leaves an environment that runs
# nothing or, worse, somebody else's code.
usable() {
    [ -x .venv/bin/python ] && new_enough .venv/bin/python &&
        .venv/bin/python -c 'import pip' 2>/dev/null &&
        grep -qF "$(pwd -P)/.venv" .venv/bin/activate
}

make_environment() {
    find_python
    "$python" -c 'import ensurepip, venv' 2>/dev/null ||
        fail "$python cannot make virtual environments: its venv module is missing." \
            "As root: apt-get install make python3-venv"
    say "making .venv with $("$python" --version)"
    "$python" -m venv --clear .venv
}

have_compiler() {
    for compiler in "${CXX:-}" g++ clang++ c++; do
        # $CXX may carry arguments; its first word is the program.
        [ -z "$compiler" ] || ! command -v "${compiler%% *}" >/dev/null 2>&1 || return 0
    done
    return 1
}

usable || make_environment

extras=${1:-}
if ! have_compiler; then
    say "no C++ compiler found (looked for \$CXX, g++, clang++, c++); installing ziglang as one"
    extras=${extras:+$extras,}compiler
fi

say "installing convloom${extras:+ with extras $extras} (the first time takes a minute or two)"
PIP_USER=0 PIP_DISABLE_PIP_VERSION_CHECK=1 .venv/bin/python -m pip install --quiet \
    --constraint constraints.txt --editable ".${extras:+[$extras]}" ||
    fail "pip could not install convloom; its own message is above." \
        "If it could not reach a package index, connect and run the same command again"
say "done"

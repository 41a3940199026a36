#!/usr/bin/env bash
# Write the hashes of all files of each package into conf/requirements.txt: of its wheels for all systems, and of its
# source, so that set-up accepts whichever of them an index has. To change a version, edit it there and run this.
#
# The files are looked up at the index that pip is configured for (PIP_INDEX_URL, or its configuration file).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

LOCK=conf/requirements.txt
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
python="${PYTHON:-.venv/bin/python}"

"$python" -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check uv
index="${PIP_INDEX_URL:-$("$python" -m pip config get global.index-url 2>/dev/null || true)}"
if [ -n "$index" ]; then export UV_DEFAULT_INDEX="$index"; fi

grep -Eo '^[A-Za-z0-9._-]+==[^ \\]+' "$LOCK" >"$work/pins.txt"
"$work/venv/bin/uv" pip compile --quiet --universal --python-version 3.11 --no-deps --no-header --no-annotate \
  --generate-hashes --output-file "$work/lock.txt" "$work/pins.txt"
{ grep '^#' "$LOCK"; cat "$work/lock.txt"; } >"$work/$(basename "$LOCK")"
cp "$work/$(basename "$LOCK")" "$LOCK"

#!/usr/bin/env bash
# Drives a gateway with the clients that people use: tritonclient and openai, in a temporary virtual environment.
# Needs the program: KASKADE_BIN, or what `cargo build --release` leaves in target/. Exit code 75: the packages cannot be had.
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
root="$(cd "$here/../.." && pwd)"
export KASKADE_BIN="${KASKADE_BIN:-${CARGO_TARGET_DIR:-$root/target}/release/kaskade}"
[ -x "$KASKADE_BIN" ] || { printf '\n!! no program at %s: run cargo build --release, or set KASKADE_BIN\n' "$KASKADE_BIN" >&2; exit 1; }

skip() { printf '\n!! THE GATEWAY WAS NOT TESTED WITH OTHER CLIENTS: %s\n\n' "$1" >&2; exit 75; }
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv" || skip 'python3 has no venv'
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check 'tritonclient[http]' numpy openai \
  || skip 'tritonclient and openai are neither installed nor on an index within reach'
cd "$root"
"$work/venv/bin/python" "$here/clients.py"

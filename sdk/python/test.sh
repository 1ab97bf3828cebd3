#!/usr/bin/env bash
# Tests the Python SDK as users install it: in a temporary virtual environment with nats-py, msgpack, numpy and nkeys alone.
# Needs a nats-server and the program: NATS_SERVER and KASKADE_BIN, or what `cargo test --release` leaves in target/.
# Exit code 75: the Python packages cannot be had.
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
root="$(cd "$here/../.." && pwd)"
target="${CARGO_TARGET_DIR:-$root/target}"

loud() { printf '\n!! %s\n\n' "$1" >&2; }

export KASKADE_BIN="${KASKADE_BIN:-$target/release/kaskade}"
if [ -z "${NATS_SERVER:-}" ]; then
  NATS_SERVER="$(ls "$target"/testkit/nats-server-*/nats-server 2>/dev/null | head -n 1)" || true
  NATS_SERVER="${NATS_SERVER:-$(command -v nats-server || true)}"
  export NATS_SERVER
fi
[ -x "$KASKADE_BIN" ] || { loud "no program at $KASKADE_BIN: run cargo build --release, or set KASKADE_BIN"; exit 1; }
[ -x "${NATS_SERVER:-}" ] || { loud 'no nats-server: run cargo test once, which fetches one, or set NATS_SERVER'; exit 1; }

work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv" || { loud 'THE PYTHON SDK WAS NOT TESTED: python3 has no venv'; exit 75; }
pip() { "$work/venv/bin/python" -m pip "$@" --quiet --disable-pip-version-check; }
if ! pip install nats-py msgpack numpy nkeys; then
  loud 'THE PYTHON SDK WAS NOT TESTED: nats-py, msgpack and numpy are neither installed nor on an index within reach'
  exit 75
fi
# The package builds and installs without any index.
pip install --no-index "$here"
python="$work/venv/bin/python"

cd "$here"
"$python" -W error::ResourceWarning -m unittest discover -s tests -t .
"$python" benchmarks/stage_throughput.py --seconds 3 --least 5000 --attempts 3

# The example in PyTorch: with an interpreter that has torch, because the package takes gigabytes.
torch="${KASKADE_TORCH_PYTHON:-python3}"
if "$torch" -c 'import torch, numpy, nats, msgpack' 2>/dev/null; then
  PYTHONPATH="$here/src" "$torch" -m unittest tests.test_torch
else
  loud 'THE EXAMPLE IN PYTORCH WAS NOT RUN: torch is not installed; name an interpreter with torch, nats-py and msgpack in KASKADE_TORCH_PYTHON'
fi

if pip install mypy 2>/dev/null; then
  "$work/venv/bin/mypy" --config-file pyproject.toml src tests/typed.py
else
  loud 'the Python SDK was not type-checked: mypy cannot be had'
fi

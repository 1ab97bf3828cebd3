#!/usr/bin/env bash
# Checks the manifests: against the schemas of Kubernetes' API, that all names resolve, and that the containers' commands serve the app,
# as processes around a real nats-server with the generated users.
# Needs a nats-server and the program: NATS_SERVER and KASKADE_BIN, or what the tests and `cargo build --release` leave in target/.
# Exit code 75: the Python packages cannot be had.
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
root="$(cd "$here/../.." && pwd)"
target="${CARGO_TARGET_DIR:-$root/target}"
export KASKADE_BIN="${KASKADE_BIN:-$target/release/kaskade}"
if [ -z "${NATS_SERVER:-}" ]; then
  NATS_SERVER="$(ls "$target"/testkit/nats-server-*/nats-server 2>/dev/null | head -n 1)" || true
  NATS_SERVER="${NATS_SERVER:-$(command -v nats-server || true)}"
  export NATS_SERVER
fi
[ -x "$KASKADE_BIN" ] || { printf '\n!! no program at %s: run cargo build --release, or set KASKADE_BIN\n' "$KASKADE_BIN" >&2; exit 1; }
[ -x "${NATS_SERVER:-}" ] || { printf '\n!! no nats-server: run cargo test once, which fetches one, or set NATS_SERVER\n' >&2; exit 1; }
venv="$target/testkit/kubernetes"
[ -x "$venv/bin/python" ] || python3 -m venv "$venv" || exit 75
# What is installed needs no index.
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check kubernetes-validate==1.37.0 || exit 75
exec "$venv/bin/python" "$here/check.py"

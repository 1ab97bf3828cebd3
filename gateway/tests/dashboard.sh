#!/usr/bin/env bash
# Tests the dashboard in a headless Chromium (gateway/tests/dashboard.py), which takes less than a minute.
# Needs the program: KASKADE_BIN, or what `cargo build --release` leaves in target/. The browser is KASKADE_BROWSER, or a Chromium on
# PATH; in a container of Debian, whose root this is, its package is installed.
# Exit code 75: there is no Chromium, or the Python package `websockets` cannot be had.
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
root="$(cd "$here/../.." && pwd)"
target="${CARGO_TARGET_DIR:-$root/target}"
export KASKADE_BIN="${KASKADE_BIN:-$target/release/kaskade}"
[ -x "$KASKADE_BIN" ] || { printf '\n!! no program at %s: run cargo build --release, or set KASKADE_BIN\n' "$KASKADE_BIN" >&2; exit 1; }

skip() { printf '\n!! THE DASHBOARD WAS NOT TESTED: %s\n\n' "$1" >&2; exit 75; }
find_browser() {
  local name
  for name in chromium chromium-browser google-chrome google-chrome-stable; do
    command -v "$name" && return
  done
  return 1
}
# A machine of someone's own is left as it is.
in_container() { [ -e /.dockerenv ] || [ -e /run/.containerenv ] || [ -n "${KUBERNETES_SERVICE_HOST:-}" ]; }

browser="${KASKADE_BROWSER:-$(find_browser || true)}"
if [ -z "$browser" ] && in_container && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  export DEBIAN_FRONTEND=noninteractive
  timeout 300 sh -c 'apt-get update -qq && apt-get install -qq -y --no-install-recommends chromium' >&2 || true
  browser="$(find_browser || true)"
fi
[ -n "$browser" ] || skip 'no Chromium is installed (Debian: the package chromium); KASKADE_BROWSER names another one'

home="$target/testkit/gateway-browser"
[ -x "$home/bin/python" ] || python3 -m venv "$home" || skip 'python3 has no venv'
# What is installed needs no index.
timeout 300 "$home/bin/python" -m pip install --quiet --disable-pip-version-check websockets >&2 ||
  skip 'the package websockets is neither installed nor on an index within reach'
cd "$root"
timeout 180 "$home/bin/python" "$here/dashboard.py" --browser "$browser"

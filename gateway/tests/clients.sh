#!/usr/bin/env bash
# Drives a gateway with the clients and conformance tools that people use. Packages go into virtual environments below cargo's target
# directory, once. A package that cannot be had is skipped loudly; the first ones are needed.
# Needs the program: KASKADE_BIN, or what `cargo build --release` leaves in target/. Exit code 75: the packages cannot be had.
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
root="$(cd "$here/../.." && pwd)"
target="${CARGO_TARGET_DIR:-$root/target}"
export KASKADE_BIN="${KASKADE_BIN:-$target/release/kaskade}"
[ -x "$KASKADE_BIN" ] || { printf '\n!! no program at %s: run cargo build --release, or set KASKADE_BIN\n' "$KASKADE_BIN" >&2; exit 1; }

skip() { printf '\n!! THE GATEWAY WAS NOT TESTED WITH OTHER CLIENTS: %s\n\n' "$1" >&2; exit 75; }
# environment NAME PACKAGE...: the folder of programs of a virtual environment with these packages.
environment() {
  local home="$target/testkit/gateway-$1"
  shift
  [ -x "$home/bin/python" ] || python3 -m venv "$home" || return 1
  # What is installed needs no index.
  timeout 600 "$home/bin/python" -m pip install --quiet --disable-pip-version-check "$@" >&2 || return 1
  printf '%s/bin' "$home"
}

clients="$(environment clients 'tritonclient[grpc,http]' numpy openai huggingface_hub)" || skip 'tritonclient, openai and huggingface_hub are neither installed nor on an index within reach'
export KASKADE_COMPLY='' KASKADE_PROVIDER_CHECK='' KASKADE_SCHEMATHESIS=''
if tools="$(environment tools llm-comply trustedrouter-provider-check schemathesis)"; then
  export KASKADE_COMPLY="$tools/llm-comply" KASKADE_PROVIDER_CHECK="$tools/trustedrouter-provider-check" KASKADE_SCHEMATHESIS="$tools/schemathesis"
else
  printf '\n!! THE GATEWAY WAS NOT TESTED FOR CONFORMANCE: llm-comply, trustedrouter-provider-check and schemathesis cannot be installed\n\n' >&2
fi
cd "$root"
"$clients/python" "$here/clients.py"
# kserve and tritonclient cannot be imported into one process. It brings thirty packages, so it can be left out.
if [ "${KASKADE_SKIP_KSERVE:-}" ]; then
  printf '\n!! kserve was not tested: KASKADE_SKIP_KSERVE is set\n\n' >&2
elif kserve="$(environment kserve kserve)"; then
  "$kserve/python" "$here/kserve_client.py"
else
  printf '\n!! kserve was not tested: it cannot be installed\n\n' >&2
fi
# A load tool; it brings a hundred packages, so it can be left out.
if [ "${KASKADE_SKIP_AIPERF:-}" ]; then
  printf '\n!! aiperf was not tested: KASKADE_SKIP_AIPERF is set\n\n' >&2
elif aiperf="$(environment aiperf aiperf)"; then
  KASKADE_AIPERF="$aiperf/aiperf" "$aiperf/python" "$here/load_tool.py"
else
  printf '\n!! aiperf was not tested: it cannot be installed\n\n' >&2
fi

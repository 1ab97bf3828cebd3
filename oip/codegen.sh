#!/usr/bin/env bash
# Makes oip/src/generated.rs of oip/proto/inference.proto. Needs cargo alone; a test tells when it must run again.
set -euo pipefail
cd "$(dirname "$0")/codegen"
cargo run --quiet --locked --target-dir "${CARGO_TARGET_DIR:-../../target}/codegen"
rustfmt --edition 2024 ../src/generated.rs

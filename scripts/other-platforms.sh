#!/bin/sh
# Type-checks Kaskade for macOS on Apple silicon, and runs the unit tests of the models and the demo for Linux on aarch64 under
# emulation. On x86-64 Linux, with rustup, Python, the packages gcc-aarch64-linux-gnu, g++-aarch64-linux-gnu and qemu-user (Debian's
# names), and a network. 20 to 40 minutes on two cores.
#
#     scripts/other-platforms.sh [macos] [aarch64]
set -eu
cd "$(dirname "$0")/.."
mkdir -p "${CARGO_TARGET_DIR:=target/other-platforms}"
CARGO_TARGET_DIR="$(cd "$CARGO_TARGET_DIR" && pwd)"
export CARGO_TARGET_DIR
[ $# -gt 0 ] || set -- macos aarch64

macos() {
  target=aarch64-apple-darwin
  tools="$CARGO_TARGET_DIR/tools"
  rustup target add "$target"
  [ -x "$tools/bin/python" ] || python3 -m venv "$tools"
  "$tools/bin/pip" install --quiet ziglang
  # Zig has the headers of macOS. It takes the target in its own spelling only.
  cat > "$tools/cc" <<END
#!/bin/bash
arguments=()
for argument in "\$@"; do
  case "\$argument" in
    --target=*|-arch|arm64|-mmacosx-version-min=*) ;;
    *) arguments+=("\$argument") ;;
  esac
done
exec "$tools/bin/python" -m ziglang cc -target aarch64-macos "\${arguments[@]}"
END
  printf '#!/bin/sh\nexec "%s" -m ziglang ar "$@"\n' "$tools/bin/python" > "$tools/ar"
  chmod +x "$tools/cc" "$tools/ar"
  CC_aarch64_apple_darwin="$tools/cc" CXX_aarch64_apple_darwin="$tools/cc" AR_aarch64_apple_darwin="$tools/ar" \
    cargo check --release --target "$target" --package kaskade --locked
}

aarch64() {
  target=aarch64-unknown-linux-gnu
  rustup target add "$target"
  export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
  export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64 -L /usr/aarch64-linux-gnu"
  cargo test --release --target "$target" --package kaskade-models --lib --locked
  cargo run --release --target "$target" --locked -- demo --out "$CARGO_TARGET_DIR/demo" --force
}

for platform in "$@"; do
  case "$platform" in
    macos | aarch64) "$platform" ;;
    *)
      echo "unknown platform '$platform': macos or aarch64" >&2
      exit 2
      ;;
  esac
done

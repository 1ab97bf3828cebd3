#!/usr/bin/env bash
# Builds Kaskade with the CUDA back end, runs the self-test on a GPU, and keeps its report.
#
#   scripts/selftest-cuda.sh [REPORT.json]
#
#   KASKADE_DEVICE  which device (default cuda)
#   KASKADE_BIN     a binary built elsewhere with --features cuda; nothing is built then
#   CUDA_PATH       the CUDA toolkit, or the folder of its PyPI packages; looked for if unset
#
# Ends with 0 if the self-test passed. docs/gpu.md says what a machine needs.
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
        echo "no CUDA toolkit and no CUDA packages found; docs/gpu.md says which ones are needed" >&2
    fi
fi
# NVRTC is loaded by name, and neither a toolkit nor the packages put it where the loader looks.
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
# A failed self-test leaves a report as well: it says what failed.
trap 'echo "report: $report" >&2' EXIT
"${program[@]}" "${arguments[@]}" >"$report"

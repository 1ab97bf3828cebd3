#!/usr/bin/env bash
# Decodes with OPT's sizes and random weights beyond a GPU's memory: compares the hybrid cache with keys and values only,
# activations only, and, if PyTorch is installed, Hugging Face accelerate's offload of the same model.
#
#   scripts/offload-cuda.sh [SHAPE ...]      opt-6.7b opt-13b opt-30b; default: the first
#
#   KASKADE_DEVICE   the device (default cuda)
#   DEVICE_MEMORY    its memory budget, GB (default 24, the paper's GPU)
#   LAYERS           maximum number of layers, if host memory is too small for all: each takes 12 * width^2 * 4 bytes twice
#   REQUESTS, PROMPT the batch (default 32 requests of 512 tokens)
#
# docs/how-to/gpu.md lists the requirements. Prints a table of medians per step, and the utilisation if `nvidia-smi` is installed.
set -euo pipefail
cd "$(dirname "$0")/.."
shapes=("${@:-opt-6.7b}")
options=(--device "${KASKADE_DEVICE:-cuda}" --device-memory "${DEVICE_MEMORY:-24}"
    --requests "${REQUESTS:-32}" --prompt "${PROMPT:-512}" ${LAYERS:+--layers "$LAYERS"})
features=(--features cuda)
if [[ ${KASKADE_DEVICE:-cuda} == cpu ]]; then features=(); fi
bench=$(cargo bench --no-run -p kaskade-models "${features[@]}" --bench offload --message-format json |
    python3 -c 'import json, sys; print([path for path in (json.loads(line).get("executable") for line in sys.stdin) if path][-1])')
watch= samples=$(mktemp)
unwatch() {
    if [[ -n $watch ]]; then
        kill "$watch" 2>/dev/null || true
        wait "$watch" 2>/dev/null || true
        watch=
    fi
}
trap 'unwatch; rm -f "$samples"' EXIT
for shape in "${shapes[@]}"; do
    echo "## $shape, ${DEVICE_MEMORY:-24} GB"
    if command -v nvidia-smi >/dev/null; then
        nvidia-smi --query-gpu=utilization.gpu,pcie.link.gen.current,pcie.link.width.current --format=csv,noheader -lms 500 >"$samples" &
        watch=$!
    fi
    "$bench" --shape "$shape" "${options[@]}"
    if [[ -n $watch ]]; then
        unwatch
        awk -F'[ ,%]+' '{ sum += $1 } END { if (NR) printf "GPU utilisation by nvidia-smi, prefill included: %.0f %% in the mean of %d samples\n", sum / NR, NR }' "$samples"
    fi
    if python3 -c 'import accelerate, torch, transformers; assert torch.cuda.is_available()' 2>/dev/null; then
        python3 scripts/offload-accelerate.py --shape "$shape" --device-memory "${DEVICE_MEMORY:-24}" \
            --requests "${REQUESTS:-32}" --prompt "${PROMPT:-512}" ${LAYERS:+--layers "$LAYERS"}
    else
        echo "accelerate is skipped: it needs torch with CUDA, transformers and accelerate from PyPI"
    fi
done

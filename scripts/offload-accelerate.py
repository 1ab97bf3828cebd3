#!/usr/bin/env python3
"""Decodes with an OPT's sizes and random weights by Hugging Face accelerate's offload: weights that do not fit are streamed,
and keys and values stay on the device. For comparison with scripts/offload-cuda.sh, in the same precision (float32).

    pip install torch transformers accelerate
    python3 scripts/offload-accelerate.py --shape opt-6.7b --device-memory 24 --requests 32 --prompt 512
"""

import argparse
import statistics
import time

import torch
from accelerate import cpu_offload, dispatch_model, infer_auto_device_map
from transformers import OPTConfig, OPTForCausalLM

SHAPES = {"opt-6.7b": (4096, 32, 32), "opt-13b": (5120, 40, 40), "opt-30b": (7168, 56, 48)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, required=True)
    parser.add_argument("--device-memory", type=float, default=24, help="GB")
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--layers", type=int, help="maximum number of layers")
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    width, heads, layers = SHAPES[args.shape]
    layers = min(args.layers or layers, layers)
    config = OPTConfig(
        vocab_size=8192,
        hidden_size=width,
        ffn_dim=4 * width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        word_embed_proj_dim=width,
        max_position_embeddings=2048,
    )
    torch.manual_seed(1)
    model = OPTForCausalLM(config).eval()
    # Keys and values of the whole batch stay on the device; weights use the rest.
    cache = 2 * 4 * width * layers * args.requests * (args.prompt + args.rounds + 2)
    left = int(args.device_memory * 1e9) - cache
    if left <= 0:
        print(f"accelerate: keys and values take {cache / 1e9:.1f} GB, more than the device; every layer is streamed, and torch may run out of memory")
    budget = {0: max(left, 0), "cpu": "1000GB"}
    devices = infer_auto_device_map(model, max_memory=budget, no_split_module_classes=["OPTDecoderLayer"])
    if 0 in devices.values():
        model = dispatch_model(model, device_map=devices, main_device=0, offload_buffers=True)
    else:
        model = cpu_offload(model, execution_device=torch.device("cuda", 0))
    prompt = torch.randint(8192, (args.requests, args.prompt), device="cuda:0")
    with torch.no_grad():
        try:
            answer = model(prompt, use_cache=True)
            steps = []
            for _ in range(args.rounds + 1):
                token = answer.logits[:, -1].argmax(-1, keepdim=True)
                torch.cuda.synchronize()
                began = time.perf_counter()
                answer = model(token, past_key_values=answer.past_key_values, use_cache=True)
                torch.cuda.synchronize()
                steps.append(time.perf_counter() - began)
        except torch.cuda.OutOfMemoryError as error:
            print(f"accelerate: out of memory: {error}")
            return
    step = statistics.median(steps[1:])
    here = sum(1 for device in devices.values() if device == 0)
    print(f"accelerate: {step:.3f} s per step, {args.requests / step:.1f} tokens/s, {here} of {len(devices)} parts on the device")


if __name__ == "__main__":
    main()

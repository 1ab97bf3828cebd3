"""Compares the decoding speed with transformers on torch, interleaved in one run.

    python3 scripts/decode-torch.py [--rounds 5] [--tokens 64] [--threads 2]

A GPT-2 with 124 million random weights decodes greedily at batch sizes 1 and 8 after a prompt of 32 tokens. Every round
measures both programs once, in turn, so that other load on the machine affects both. Prints medians over the rounds, and
their ratio. Each program stays in one process with the model loaded, and runs one measurement per line of input.
"""

import argparse
import json
import os
import statistics
import subprocess
import time


def built():
    """The benchmark's program, as cargo names it after building it."""
    command = ["cargo", "bench", "--no-run", "-p", "kaskade-models", "--bench", "decode", "--message-format", "json"]
    messages = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
    return [path for path in (json.loads(line).get("executable") for line in messages) if path][-1]


def torch_measurement(threads):
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config()).eval()

    def measure(batch, prompt, tokens):
        """Seconds per step of a greedy loop with a key-value cache, without the prompt."""
        with torch.inference_mode():
            out = model(torch.randint(0, 50257, (batch, prompt)), use_cache=True)
            began = time.perf_counter()
            for _ in range(tokens):
                token = out.logits[:, -1:].argmax(-1)
                out = model(token, past_key_values=out.past_key_values, use_cache=True)
            return (time.perf_counter() - began) / tokens

    return measure


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kaskade", help="the built benchmark; default: it is built")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--prompt", type=int, default=32)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    environment = {**os.environ, "RAYON_NUM_THREADS": str(arguments.threads)}
    ours = subprocess.Popen(
        [arguments.kaskade or built()], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )
    theirs = torch_measurement(arguments.threads)

    def ask(batch):
        ours.stdin.write(json.dumps({"batch": batch, "prompt": arguments.prompt, "tokens": arguments.tokens}) + "\n")
        ours.stdin.flush()
        return json.loads(ours.stdout.readline())["step_s"]

    for batch in (1, 8):
        ask(batch), theirs(batch, arguments.prompt, 8)
        figures = [(ask(batch), theirs(batch, arguments.prompt, arguments.tokens)) for _ in range(arguments.rounds)]
        mine, other = (statistics.median(side) for side in zip(*figures))
        ratios = sorted(other / mine for mine, other in figures)
        print(
            f"batch {batch}: kaskade {batch / mine:.1f} tokens/s, torch {batch / other:.1f} tokens/s, "
            f"ratio {other / mine:.2f} (rounds {ratios[0]:.2f} to {ratios[-1]:.2f})",
            flush=True,
        )
    ours.stdin.close()
    ours.wait()


if __name__ == "__main__":
    main()

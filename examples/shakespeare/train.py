#!/usr/bin/env python3
"""Trains the Shakespeare family: three sizes of GPT-2 over letters, as Hugging Face directories.

    pip install torch transformers tokenizers safetensors
    python examples/shakespeare/train.py --text tinyshakespeare.txt --out examples/shakespeare/weights

The first nine tenths of the text are learned from. What follows is for validation and test: it is only used to say how
far the training has come, and to keep the best weights.
"""

import argparse
import json
import math
import time
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel

CONTEXT = 256
VOCABULARY = 256
LEARNED, VALIDATED = 0.9, 0.95

# name: layers, width, heads, steps, learning rate, dropout
RECIPES = {
    "shakespeare-pico": (1, 64, 2, 1200, 4e-3, 0.0),
    "shakespeare-mini": (2, 96, 3, 1200, 3e-3, 0.0),
    "shakespeare-base": (3, 160, 5, 1000, 2.5e-3, 0.0),
}


def line_after(text: bytes, share: float) -> int:
    """Where the first line begins after a share of the text."""
    at = int(len(text) * share)
    end = text.find(b"\n", at)
    return len(text) if end < 0 else end + 1


def letters() -> Tokenizer:
    """A token for every byte: so small a text teaches letters better than pieces of words, and a prompt may end within a word."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: number for number, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def windows(tokens: torch.Tensor, count: int, generator: torch.Generator) -> torch.Tensor:
    starts = torch.randint(len(tokens) - CONTEXT, (count,), generator=generator)
    return torch.stack([tokens[start : start + CONTEXT] for start in starts])


@torch.no_grad()
def loss_on(model: GPT2LMHeadModel, tokens: torch.Tensor) -> float:
    """Mean loss per token over the whole of some tokens, nats."""
    model.eval()
    rows = tokens[: len(tokens) // CONTEXT * CONTEXT].view(-1, CONTEXT)
    losses = [model(input_ids=part, labels=part).loss.item() * len(part) for part in rows.split(16)]
    model.train()
    return sum(losses) / len(rows)


def train(name: str, tokens: torch.Tensor, validation: torch.Tensor, batch: int, seed: int) -> GPT2LMHeadModel:
    layers, width, heads, steps, rate, dropout = RECIPES[name]
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=VOCABULARY,
            n_positions=CONTEXT,
            n_embd=width,
            n_layer=layers,
            n_head=heads,
            resid_pdrop=dropout,
            embd_pdrop=dropout,
            attn_pdrop=dropout,
            bos_token_id=None,
            eos_token_id=None,
            attn_implementation="sdpa",
        )
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.1, betas=(0.9, 0.99))
    warm = max(1, steps // 20)

    def factor(step: int) -> float:
        if step < warm:
            return (step + 1) / warm
        return 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, steps - warm)))

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    best, kept, began = math.inf, None, time.time()
    parameters = sum(p.numel() for p in model.parameters())
    print(f"{name}: {parameters} weights", flush=True)
    for step in range(1, steps + 1):
        part = windows(tokens, batch, generator)
        loss = model(input_ids=part, labels=part).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        schedule.step()
        if step % (steps // 12) == 0 or step == steps:
            seen = loss_on(model, validation)
            note = ""
            if seen < best:
                best, kept, note = seen, {k: v.clone() for k, v in model.state_dict().items()}, "  kept"
            print(f"  step {step:>5}/{steps}  loss {loss.item():.4f}  validation {seen:.4f}  {time.time() - began:.0f} s{note}", flush=True)
    model.load_state_dict(kept)
    return model


def save(folder: Path, model: GPT2LMHeadModel, tokenizer: Tokenizer) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    # The head shares its weight with the embedding, and half precision is all that such small models need.
    weights = {k: v.to(torch.float16).contiguous() for k, v in model.state_dict().items() if k != "lm_head.weight"}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    kept = ("vocab_size", "n_positions", "n_embd", "n_layer", "n_head", "n_inner", "activation_function", "layer_norm_epsilon")
    config = {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "torch_dtype": "float16", "tie_word_embeddings": True}
    config |= {key: getattr(model.config, key) for key in kept if getattr(model.config, key) is not None}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, required=True, help="the text to learn from")
    parser.add_argument("--out", type=Path, required=True, help="the folder of the weights")
    parser.add_argument("--only", action="append", choices=RECIPES, help="sizes to train; default: all")
    parser.add_argument("--batch", type=int, default=16, help=f"excerpts of {CONTEXT} tokens per step")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    text = args.text.read_bytes()
    learned, validated = line_after(text, LEARNED), line_after(text, VALIDATED)
    tokenizer = letters()
    tokens = torch.tensor(tokenizer.encode(text[:learned].decode()).ids)
    validation = torch.tensor(tokenizer.encode(text[learned:validated].decode()).ids)
    print(f"{len(tokens)} tokens to learn from, {len(validation)} for validation", flush=True)
    for name in args.only or RECIPES:
        model = train(name, tokens, validation, args.batch, args.seed)
        save(args.out / name, model, tokenizer)


if __name__ == "__main__":
    main()

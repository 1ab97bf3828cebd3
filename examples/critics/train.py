#!/usr/bin/env python3
"""Trains the critics: two sizes of T5 that say in a word whether a sentence about a film is kind to it, as Hugging Face directories.

    pip install torch transformers tokenizers safetensors
    python examples/critics/train.py --sst2 path/to/sst2 --data critics --out examples/critics/weights

`--data` is the folder for the evaluation samples, as JSON lines; no model is trained on them.
"""

import argparse
import json
import math
import random
import time
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import T5Config, T5ForConditionalGeneration

VOCABULARY = 3000
PAD, END = 0, 1
BATCH = 32
WARM = 100

# name: layers of either side, width, heads, inner width, steps, learning rate
RECIPES = {
    "critics-pico": (1, 32, 4, 64, 2000, 2e-3),
    "critics-mini": (2, 96, 8, 192, 1200, 1.5e-3),
}


def sentences(path: Path) -> list[tuple[str, str]]:
    """Tab-separated sentences and labels as questions and answers."""
    lines = (line.rsplit("\t", 1) for line in path.read_text().splitlines())
    return [(f"sst2 sentence: {text}", "positive" if label == "1" else "negative") for text, label in lines]


def tokenizer_of(texts: list[str]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A $B </s>", special_tokens=[("</s>", END)]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<pad>", "</s>", "<unk>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def tensors(tokenizer: Tokenizer, samples: list[tuple[str, str]]) -> dict[str, torch.Tensor]:
    def padded(texts: list[str], filler: int) -> torch.Tensor:
        rows = [encoding.ids for encoding in tokenizer.encode_batch(texts)]
        longest = max(map(len, rows))
        return torch.tensor([row + [filler] * (longest - len(row)) for row in rows])

    asked = padded([text for text, _ in samples], PAD)
    answers = padded([answer for _, answer in samples], -100)
    return {"input_ids": asked, "attention_mask": (asked != PAD).long(), "labels": answers}


@torch.no_grad()
def right(model: T5ForConditionalGeneration, tokenizer: Tokenizer, samples: list[tuple[str, str]]) -> list[bool]:
    """Which samples are answered word by word as they should be."""
    model.eval()
    hits = []
    for start in range(0, len(samples), 100):
        part = samples[start : start + 100]
        batch = tensors(tokenizer, part)
        made = model.generate(batch["input_ids"], attention_mask=batch["attention_mask"], max_new_tokens=6, do_sample=False)
        texts = tokenizer.decode_batch(made.tolist())
        hits += [text.strip() == answer for text, (_, answer) in zip(texts, part)]
    model.train()
    return hits


def train(name: str, tokenizer: Tokenizer, films: list, validation: list, out: Path) -> None:
    layers, width, heads, inner, steps, rate = RECIPES[name]
    torch.manual_seed(7)
    draw = random.Random(7)
    config = T5Config(
        vocab_size=tokenizer.get_vocab_size(),
        d_model=width,
        d_kv=width // heads,
        d_ff=inner,
        num_layers=layers,
        num_decoder_layers=layers,
        num_heads=heads,
        dropout_rate=0.1,
        relative_attention_num_buckets=16,
        relative_attention_max_distance=64,
        feed_forward_proj="gated-gelu",
        # In transformers 5: the head is the embeddings, and its inputs are not scaled.
        tie_word_embeddings=False,
        decoder_start_token_id=PAD,
        pad_token_id=PAD,
        eos_token_id=END,
    )
    model = T5ForConditionalGeneration(config).train()
    # They start so large that AdamW's small steps would hardly move them.
    torch.nn.init.normal_(model.shared.weight, std=0.05)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.01, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: min((step + 1) / WARM, 0.5 * (1 + math.cos(math.pi * min(1.0, step / steps))) + 0.02),
    )
    best, kept, began, losses = -1, None, time.time(), []
    for step in range(1, steps + 1):
        samples = draw.sample(films, BATCH)
        loss = model(**tensors(tokenizer, samples)).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
        if step % 100 == 0 or step == steps:
            hits = right(model, tokenizer, validation)
            if sum(hits) > best:
                best, kept = sum(hits), {key: value.clone() for key, value in model.state_dict().items()}
            mean = sum(losses[-100:]) / len(losses[-100:])
            print(
                f"{name} {step:5} of {steps}: loss {mean:.3f}, {sum(hits)} of {len(validation)} right, {time.time() - began:.0f} s",
                flush=True,
            )
    folder = out / name
    folder.mkdir(parents=True, exist_ok=True)
    tied = {"encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight"}
    weights = {key: value.half().contiguous() for key, value in kept.items() if key not in tied}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config.architectures = ["T5ForConditionalGeneration"]
    config.save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    print(f"{name}: {sum(weight.numel() for weight in weights.values())} weights, {best} of {len(validation)} right", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sst2", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", choices=sorted(RECIPES))
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)

    films = sentences(arguments.sst2 / "train.tsv")
    arguments.data.mkdir(parents=True, exist_ok=True)
    measured = {}
    for name, file in (("validation", "dev.tsv"), ("test", "test.tsv")):
        measured[name] = sentences(arguments.sst2 / file)
        lines = (json.dumps({"text": asked, "answer": answer}) for asked, answer in measured[name])
        (arguments.data / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    tokenizer = tokenizer_of([part for sample in films for part in sample])
    for name in RECIPES if arguments.only is None else [arguments.only]:
        train(name, tokenizer, films, measured["validation"], arguments.out)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Trains the questions family: three sizes of T5 that answer in words, as Hugging Face directories.

    pip install torch transformers tokenizers safetensors
    python examples/questions/train.py --sst2 path/to/sst2 --text tinyshakespeare.txt --data questions --out examples/questions/weights

Two tasks are put into words, as T5 does: whether a sentence about a film is kind to it, and who of three says something in a
scene. Both sets are split by their sources before anything is made of them, and `--data` gets what is measured on, as JSON lines.
"""

import argparse
import json
import math
import random
import re
import time
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import T5Config, T5ForConditionalGeneration

VOCABULARY = 3000
PAD, END, UNKNOWN = 0, 1, 2
# Of each task, in the files for validation and for test.
MEASURED = 500
# Words of a speech that a scene shows, and of them those that a question quotes.
SHOWN, QUOTED = 14, 4
# Whoever speaks in a scene is given one of these names: the answer is to be read there, not remembered.
NAMES = (
    "Romeo Juliet Tybalt Benvolio Mercutio Capulet Montague Paris Nurse Peter Menenius Brutus Sicinius Cominius "
    "Volumnia Virgilia Aufidius Gloucester Clarence Buckingham Hastings Stanley Richmond Warwick Edward Margaret "
    "Leontes Camillo Hermione Paulina Polixenes Florizel"
).split()

# name: layers of either side, width, heads, inner width, steps, learning rate
RECIPES = {
    "questions-pico": (1, 64, 2, 128, 3000, 3e-3),
    "questions-mini": (2, 128, 4, 256, 4000, 2e-3),
    "questions-base": (3, 192, 6, 512, 4000, 1.2e-3),
}


def sentences(path: Path) -> list[tuple[str, str]]:
    """Tab-separated sentences and labels as questions and answers."""
    lines = (line.rsplit("\t", 1) for line in path.read_text().splitlines())
    return [(f"sst2 sentence: {text}", "positive" if label == "1" else "negative") for text, label in lines]


def speeches(text: str) -> list[str]:
    """What is said, without who says it; a speech that has too few words to be quoted is left out."""
    said = (re.sub(r"\s+", " ", speech.split(":\n", 1)[-1]).strip() for speech in text.split("\n\n"))
    return [speech for speech in said if len(speech.split()) > QUOTED]


def scene(said: list[str], draw: random.Random) -> tuple[str, str]:
    """Three speeches by three speakers, some words of one of them, and who says those."""
    speakers, asked = draw.sample(NAMES, 3), draw.randrange(3)
    parts = [speech.split()[:SHOWN] for speech in draw.sample(said, 3)]
    start = draw.randrange(len(parts[asked]) - QUOTED + 1)
    quote = " ".join(parts[asked][start : start + QUOTED])
    context = " ".join(f"{speaker}: {' '.join(part)}" for speaker, part in zip(speakers, parts))
    return f"question: who says {quote} context: {context}", speakers[asked]


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


def train(name: str, tokenizer: Tokenizer, learned: tuple, validation: list, out: Path) -> None:
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
        decoder_start_token_id=PAD,
        pad_token_id=PAD,
        eos_token_id=END,
    )
    model = T5ForConditionalGeneration(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.01, betas=(0.9, 0.98))
    warm = 200
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: min((step + 1) / warm, 0.5 * (1 + math.cos(math.pi * min(1.0, step / steps))) + 0.02),
    )
    films, said = learned
    best, kept, began, losses = -1, None, time.time(), []
    half = len(validation) // 2
    for step in range(1, steps + 1):
        # Scenes never come twice and films do, so films take the smaller part.
        samples = draw.sample(films, 12) + [scene(said, draw) for _ in range(36)]
        loss = model(**tensors(tokenizer, samples)).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
        if step % 250 == 0 or step == steps:
            hits = right(model, tokenizer, validation)
            if sum(hits) > best:
                best, kept = sum(hits), {key: value.clone() for key, value in model.state_dict().items()}
            mean = sum(losses[-250:]) / len(losses[-250:])
            print(
                f"{name} {step:5} of {steps}: loss {mean:.3f}, films {sum(hits[:half]) / half:.3f}, "
                f"scenes {sum(hits[half:]) / half:.3f}, {time.time() - began:.0f} s",
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
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", choices=sorted(RECIPES))
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)

    text = arguments.text.read_text()
    cuts = [text.find("\n\n", int(len(text) * share)) for share in (0.9, 0.95)]
    parts = [speeches(part) for part in (text[: cuts[0]], text[cuts[0] : cuts[1]], text[cuts[1] :])]
    films = sentences(arguments.sst2 / "train.tsv")
    draw = random.Random(5)
    measured = {}
    arguments.data.mkdir(parents=True, exist_ok=True)
    for name, file, said in (("validation", "dev.tsv", parts[1]), ("test", "test.tsv", parts[2])):
        samples = draw.sample(sentences(arguments.sst2 / file), MEASURED) + [scene(said, draw) for _ in range(MEASURED)]
        lines = (json.dumps({"text": asked, "answer": answer}) for asked, answer in samples)
        (arguments.data / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
        measured[name] = samples

    examples = films + [scene(parts[0], draw) for _ in range(len(films))]
    tokenizer = tokenizer_of([part for sample in examples for part in sample])
    for name in RECIPES if arguments.only is None else [arguments.only]:
        train(name, tokenizer, (films, parts[0]), measured["validation"], arguments.out)


if __name__ == "__main__":
    main()

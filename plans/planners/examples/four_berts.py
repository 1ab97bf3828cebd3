"""Writes a family of four BERTs of 2, 4, 8 and 12 layers, with sentences to profile and to serve: FOLDER/app.toml.

    pip install numpy safetensors
    python plans/planners/examples/four_berts.py FOLDER

The label of a sentence is the sign of the sum of what its words feel like. Every model sums that over the words, with noise in its word
embeddings that falls with its size; the layers keep the sum and cost what layers of that width cost.
"""

import json
import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

WIDTH, INNER, HEADS, VOCABULARY, LONGEST = 512, 2048, 8, 400, 40
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LETTERS = "abcdefghijklmnopqrst"
WORDS = SPECIAL + [a + b for a in LETTERS for b in LETTERS][: VOCABULARY - len(SPECIAL)]
# Name, layers, noise of the embeddings.
MODELS = [("bert2", 2, 1.0), ("bert4", 4, 0.6), ("bert8", 8, 0.35), ("bert12", 12, 0.1)]

random = np.random.default_rng(1)
FEELING = random.normal(size=VOCABULARY)
FEELING[: len(SPECIAL)] = 0
DIRECTION = random.normal(size=WIDTH)
DIRECTION -= DIRECTION.mean()
DIRECTION /= np.linalg.norm(DIRECTION)


def without_direction(rows):
    return rows - np.outer(rows @ DIRECTION, DIRECTION)


def weights(layers, noise, seed):
    rng = np.random.default_rng(seed)
    tensors = {}

    def linear(name, out, into, identity=0.0):
        matrix = 0.004 * rng.normal(size=(out, into))
        tensors[f"{name}.weight"] = matrix + identity * np.eye(out, into)
        tensors[f"{name}.bias"] = np.zeros(out)

    def norm(name):
        tensors[f"{name}.weight"], tensors[f"{name}.bias"] = np.ones(WIDTH), np.zeros(WIDTH)

    felt = FEELING + noise * rng.normal(size=VOCABULARY) * (FEELING != 0)
    words = without_direction(0.3 * rng.normal(size=(VOCABULARY, WIDTH))) + np.outer(4 * felt, DIRECTION)
    embeddings = "bert.embeddings"
    tensors[f"{embeddings}.word_embeddings.weight"] = words
    tensors[f"{embeddings}.position_embeddings.weight"] = without_direction(0.02 * rng.normal(size=(64, WIDTH)))
    tensors[f"{embeddings}.token_type_embeddings.weight"] = np.zeros((2, WIDTH))
    norm(f"{embeddings}.LayerNorm")
    for number in range(layers):
        layer = f"bert.encoder.layer.{number}"
        # The first layer adds the mean of all words to each; the others change little.
        mean, kept = (1.0, 2.0) if number == 0 else (0.1, 0.1)
        linear(f"{layer}.attention.self.query", WIDTH, WIDTH)
        linear(f"{layer}.attention.self.key", WIDTH, WIDTH)
        linear(f"{layer}.attention.self.value", WIDTH, WIDTH, mean)
        linear(f"{layer}.attention.output.dense", WIDTH, WIDTH, kept)
        norm(f"{layer}.attention.output.LayerNorm")
        linear(f"{layer}.intermediate.dense", INNER, WIDTH)
        linear(f"{layer}.output.dense", WIDTH, INNER)
        norm(f"{layer}.output.LayerNorm")
    tensors["bert.pooler.dense.weight"], tensors["bert.pooler.dense.bias"] = 0.3 * np.eye(WIDTH), np.zeros(WIDTH)
    tensors["classifier.weight"] = 3 * np.stack([-DIRECTION, DIRECTION])
    tensors["classifier.bias"] = np.zeros(2)
    return {name: np.ascontiguousarray(tensor, dtype=np.float32) for name, tensor in tensors.items()}


def tokenizer():
    def special(token):
        return {"SpecialToken": {"id": token, "type_id": 0}}

    added = [
        {"id": number, "content": token, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
        for number, token in enumerate(SPECIAL)
    ]
    single = [special("[CLS]"), {"Sequence": {"id": "A", "type_id": 0}}, special("[SEP]")]
    ids = {token: {"id": token, "ids": [SPECIAL.index(token)], "tokens": [token]} for token in ("[CLS]", "[SEP]")}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": {"type": "TemplateProcessing", "single": single, "pair": single, "special_tokens": ids},
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": {word: id for id, word in enumerate(WORDS)}, "unk_token": "[UNK]"},
    }


def config(layers):
    return {
        "architectures": ["BertForSequenceClassification"],
        "model_type": "bert",
        "hidden_act": "gelu",
        "hidden_size": WIDTH,
        "id2label": {"0": "negative", "1": "positive"},
        "label2id": {"negative": 0, "positive": 1},
        "intermediate_size": INNER,
        "layer_norm_eps": 1e-12,
        "max_position_embeddings": 64,
        "num_attention_heads": HEADS,
        "num_hidden_layers": layers,
        "pad_token_id": 0,
        "type_vocab_size": 2,
        "vocab_size": VOCABULARY,
    }


def sentences(count, seed):
    rng = np.random.default_rng(seed)
    for _ in range(count):
        words = rng.integers(len(SPECIAL), VOCABULARY, rng.integers(20, LONGEST))
        yield " ".join(WORDS[word] for word in words) + f"\t{int(FEELING[words].sum() > 0)}\n"


def main(folder):
    for seed, (name, layers, noise) in enumerate(MODELS):
        directory = folder / name
        directory.mkdir(parents=True, exist_ok=True)
        save_file(weights(layers, noise, 10 + seed), directory / "model.safetensors", metadata={"format": "pt"})
        (directory / "tokenizer.json").write_text(json.dumps(tokenizer()))
        (directory / "config.json").write_text(json.dumps(config(layers)))
    (folder / "valid.tsv").write_text("".join(sentences(1200, 1)))
    (folder / "test.tsv").write_text("".join(sentences(3000, 2)))
    variants = "".join(f'[[variants]]\nname = "{name}"\ndir = "{name}"\n\n' for name, *_ in MODELS)
    head = 'name = "four-berts"\ntask = "classification"\nslo = { p95 = "400ms" }\n\n'
    data = '[data.validation.tsv]\nfile = "valid.tsv"\n\n[data.test.tsv]\nfile = "test.tsv"\n\n'
    (folder / "app.toml").write_text(head + variants + data + '[batching]\nmax_batch = 32\nmax_wait = "2ms"\n')


if __name__ == "__main__":
    main(Path(sys.argv[1]))

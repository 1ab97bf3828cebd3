#!/usr/bin/env python3
"""Writes Parquet files as users have them: by `datasets` (Snappy), and by pandas with Zstandard.

    python3 -m venv venv && venv/bin/pip install datasets pandas
    venv/bin/python app/tests/parquet/make_parquet.py
"""

from pathlib import Path

import datasets
import pandas
import pyarrow
import pyarrow.parquet

HERE = Path(__file__).parent
IMAGES = HERE.parents[2] / "models/fixtures/images"

features = datasets.Features(
    {
        "text": datasets.Value("string"),
        "label": datasets.ClassLabel(names=["cat", "dog"]),
        "idx": datasets.Value("int64"),
        "score": datasets.Value("float32"),
        "parts": datasets.Sequence(datasets.Value("string")),
    }
)
rows = {"text": ["naïve", "b\nc"], "label": [1, 0], "idx": [7, 8], "score": [0.5, -1.0], "parts": [["a", "b"], []]}
datasets.Dataset.from_dict(rows, features=features).to_parquet(HERE / "texts.parquet")

# Classes in another order than the model's, alone and as the tags of words, as CoNLL 2003 has them; a row without a label is -1.
tags = datasets.Sequence(datasets.ClassLabel(names=["O", "B-LOC", "B-PER"]))
other_order = datasets.Features(
    {
        "text": datasets.Value("string"),
        "label": datasets.ClassLabel(names=["Dog", "cat"]),
        "tokens": datasets.Sequence(datasets.Value("string")),
        "ner_tags": tags,
    }
)
rows = {"text": ["a", "b", "c"], "label": [0, 1, -1], "tokens": [["Rome"], ["x", "Ann"], []], "ner_tags": [[1], [0, 2], []]}
pyarrow.parquet.write_table(pyarrow.table(rows, schema=other_order.arrow_schema), HERE / "labels.parquet")

files = [{"bytes": (IMAGES / name).read_bytes(), "path": name} for name in ("small.png", "grey.gif")]
images = {"image": files, "label": [0, 1]}
with_images = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])})
embedded = datasets.Dataset.from_dict(images, features=with_images)
embedded.to_parquet(HERE / "images.parquet")

table = pandas.DataFrame({"sentence": ["good", None, "bad"], "label": [1, 1, 0]})
table.to_parquet(HERE / "zstd.parquet", compression="zstd", index=False)
table.to_parquet(HERE / "gzip.parquet", compression="gzip", index=False)
table.to_parquet(HERE / "lz4.parquet", compression="lz4", index=False)
table.to_parquet(HERE / "brotli.parquet", compression="brotli", index=False)

# Texts and names of classes as plain bytes, as some programs write them; the third text is no UTF-8.
binary = {"text": [b"good", "naïve".encode(), b"caf\xe9"], "label": [b"dog", b"cat", b"cat"]}
pyarrow.parquet.write_table(pyarrow.table(binary), HERE / "binary.parquet")

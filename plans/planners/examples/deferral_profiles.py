"""Writes profiles of a family of six and one of eight models, trained here on real data, for `deferral_study --profile`.

    python deferral_profiles.py MNIST_FOLDER SST2_FOLDER OUT_FOLDER

MNIST_FOLDER holds `t10k-images-idx3-ubyte.gz` and its labels (10,000 images: the first 7,000 train, the rest are profiled); SST2_FOLDER holds
`train.tsv`, `dev.tsv` and `test.tsv` (the last two are profiled). Needs numpy and scikit-learn. Costs are multiply-adds, a stand-in for
energy: what counts is their ratio. The temperature is fitted on the 40 % of the profiled samples that no study certifies on.
"""

import gzip
import json
import sys
from pathlib import Path

import numpy as np
from scipy.optimize import minimize_scalar
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import FeatureUnion, make_pipeline


def idx(path, offset):
    data = gzip.open(path).read()
    return np.frombuffer(data, np.uint8, offset=offset)


def pooled(images, size):
    side = 28 // size
    return images.reshape(-1, size, side, size, side).mean((2, 4)).reshape(len(images), -1)


def tempered(log_probabilities, temperature):
    z = log_probabilities / temperature
    z = z - z.max(1, keepdims=True)
    p = np.exp(z)
    return p / p.sum(1, keepdims=True)


def ece(top, right):
    bins = np.minimum((top * 15).astype(int), 14)
    return float(sum(abs((top - right)[bins == b].sum()) for b in range(15)) / len(top))


def variant(name, parameters, cost, probabilities, labels):
    log_p = np.log(np.maximum(probabilities, 1e-30))
    fit = np.random.default_rng(0).random(len(labels)) < 0.4

    def nll(log_t):
        p = tempered(log_p[fit], np.exp(log_t))
        return -np.log(np.maximum(p[np.arange(fit.sum()), labels[fit]], 1e-30)).mean()

    temperature = float(np.exp(minimize_scalar(nll, bounds=(-3, 3), method="bounded").x))
    p = tempered(log_p, temperature)
    ordered = np.sort(p, 1)
    prediction = p.argmax(1)
    right = prediction == labels
    entropy = -(p * np.log(np.maximum(p, 1e-300))).sum(1) / np.log(p.shape[1])
    print(f"{name}: {right.mean():.4f}, {cost} multiply-adds, T = {temperature:.2f}", flush=True)
    six = lambda values: [round(float(v), 6) for v in np.clip(values, 0, 1)]
    return {
        "name": name,
        "parameters": int(parameters),
        "costs": [{"batch": 1, "latency_s": cost * 1e-9, "energy_j": cost * 1e-9}],
        "calibration": {"estimator": {"kind": "max_squared"}, "temperature": temperature},
        "ece": {"before": ece(np.sort(probabilities, 1)[:, -1], right), "after": ece(ordered[:, -1], right)},
        "validation": {
            "predictions": prediction.tolist(),
            "confidences": six(ordered[:, -1] ** 2),
            "correct": right.tolist(),
            "margins": six(ordered[:, -1] - ordered[:, -2]),
            "entropies": six(entropy),
        },
    }


def write(out, app, variants, input_bytes):
    profile = {
        "version": 1,
        "app": app,
        "device": "none: multiply-adds",
        "energy_source": "stated: 1 nJ per multiply-add",
        "estimator": {"kind": "max_squared"},
        "samples": len(input_bytes),
        "input_bytes": input_bytes,
        "variants": variants,
    }
    (Path(out) / f"{app}.profile.json").write_text(json.dumps(profile))


def mnist(folder):
    images = idx(f"{folder}/t10k-images-idx3-ubyte.gz", 16).reshape(-1, 28, 28) / 255.0
    labels = idx(f"{folder}/t10k-labels-idx1-ubyte.gz", 8).astype(int)
    variants = []
    plans = [("linear-4", 4, None), ("linear-7", 7, None), ("linear-14", 14, None),
             ("mlp-14x32", 14, (32,)), ("mlp-14x128", 14, (128,)), ("mlp-28x256", 28, (256,))]
    for name, size, hidden in plans:
        x = pooled(images, size)
        train, rest = x[:7000], x[7000:]
        if hidden is None:
            model = LogisticRegression(max_iter=300)
            widths = [size * size, 10]
        else:
            model = MLPClassifier(hidden, max_iter=12, alpha=1e-3, random_state=0, batch_size=64)
            widths = [size * size, *hidden, 10]
        model.fit(train, labels[:7000])
        cost = sum(a * b for a, b in zip(widths, widths[1:]))
        variants.append(variant(name, cost, cost, model.predict_proba(rest), labels[7000:]))
    return variants, [784] * (len(images) - 7000)


def sst2(folder):
    def read(name):
        lines = [line.split("\t") for line in Path(folder, name).read_text().splitlines()]
        return [line[0] for line in lines], np.array([int(line[1]) for line in lines])

    texts, labels = read("train.tsv")
    (dev, dev_labels), (test, test_labels) = read("dev.tsv"), read("test.tsv")
    rest, rest_labels = dev + test, np.concatenate([dev_labels, test_labels])
    variants = []
    plans = [("words-100", 100, 1, None), ("words-300", 300, 1, None), ("words-1000", 1000, 1, None), ("words-4000", 4000, 1, None),
             ("pairs-12000", 12000, 2, None), ("pairs-40000", 40000, 2, None), ("letters-80000", 0, 0, 80000), ("both-160000", 60000, 2, 100000)]
    for name, words, n, letters in plans:
        parts = []
        if words:
            of_words = TfidfVectorizer(max_features=words, ngram_range=(1, n), sublinear_tf=True, token_pattern=r"\S+")
            parts.append(("words", of_words))
        if letters:
            of_letters = TfidfVectorizer(max_features=letters, ngram_range=(2, 6), sublinear_tf=True, analyzer="char_wb")
            parts.append(("letters", of_letters))
        cost = words + (letters or 0)
        pipeline = make_pipeline(FeatureUnion(parts), LogisticRegression(C=4.0, max_iter=300)).fit(texts, labels)
        variants.append(variant(name, cost, cost, pipeline.predict_proba(rest), rest_labels))
    return variants, [len(text.encode()) for text in rest]


if __name__ == "__main__":
    mnist_folder, sst2_folder, out = sys.argv[1:]
    write(out, "sst2", *sst2(sst2_folder))
    write(out, "mnist", *mnist(mnist_folder))

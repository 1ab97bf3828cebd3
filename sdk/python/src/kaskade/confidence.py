"""Confidence scores and their calibration, as the plan's estimators define them.

All functions take scores of shape `[samples, classes]` and return one value per sample.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .tensors import Array

Floats = npt.NDArray[np.float64]

BINS = 15
"""Bins of the calibration error."""
LEAST_TEMPERATURE, LARGEST_TEMPERATURE = 0.01, 100.0


@dataclass(frozen=True)
class Estimator:
    """How scores become a confidence: `max_squared`, `margin`, `top_k` or `given`."""

    kind: str = "max_squared"
    k: int | None = None

    def __post_init__(self) -> None:
        if self.kind not in ("max_squared", "margin", "top_k", "given"):
            raise ValueError(f"the estimator is {self.kind!r}; it must be max_squared, margin, top_k or given")
        if (self.kind == "top_k") != (self.k is not None) or (self.k is not None and self.k < 2):
            raise ValueError("top_k, and no other estimator, has a k of at least 2")

    def to_json(self) -> dict[str, Any]:
        """Returns it as plans and profiles hold it."""
        return {"kind": self.kind} if self.k is None else {"kind": self.kind, "k": self.k}


def softmax(logits: Array, temperature: float = 1.0) -> Floats:
    """Returns the probabilities of the classes; raises `ValueError` for scores that are empty or not finite."""
    scores = np.asarray(logits, dtype=np.float64)
    if scores.ndim != 2 or scores.shape[1] < 2:
        raise ValueError(f"scores have shape {scores.shape}; they must be [samples, classes] with at least 2 classes")
    if not np.isfinite(scores).all():
        raise ValueError("scores hold NaN or an infinity")
    if not (np.isfinite(temperature) and temperature > 0):
        raise ValueError(f"the temperature is {temperature}; it must be positive")
    weights = np.exp((scores - scores.max(axis=1, keepdims=True)) / temperature)
    return np.asarray(weights / weights.sum(axis=1, keepdims=True), dtype=np.float64)


def confidence(logits: Array, estimator: Estimator, temperature: float = 1.0) -> Floats:
    """Returns the confidence of every sample in [0, 1]; raises `ValueError` as `softmax`."""
    if estimator.kind == "given":
        raise ValueError("the estimator `given` reads the model's own confidence, not scores")
    scores = np.asarray(logits, dtype=np.float64)
    if estimator.k is not None and scores.ndim == 2 and estimator.k < scores.shape[1]:
        scores = np.partition(scores, scores.shape[1] - estimator.k, axis=1)[:, -estimator.k :]
    probabilities = np.sort(softmax(scores, temperature), axis=1)
    if estimator.kind == "margin":
        return np.asarray(probabilities[:, -1] - probabilities[:, -2], dtype=np.float64)
    return np.asarray(probabilities[:, -1] ** 2, dtype=np.float64)


def class_spread(logits: Array, temperature: float = 1.0) -> tuple[Floats, Floats]:
    """Returns margin (first minus second probability) and entropy (over the largest possible) of every sample, in [0, 1]."""
    probabilities = np.sort(softmax(logits, temperature), axis=1)
    margin = probabilities[:, -1] - probabilities[:, -2]
    # 0 log 0 is 0.
    logarithms = np.log(probabilities, out=np.zeros_like(probabilities), where=probabilities > 0)
    entropy = -(probabilities * logarithms).sum(axis=1) / np.log(probabilities.shape[1])
    return np.asarray(margin, dtype=np.float64), np.clip(entropy, 0.0, 1.0)


def check_labels(labels: Sequence[int], classes: int) -> None:
    """Raises `ValueError` for a label that is no class, of 0 to `classes` - 1."""
    for sample, label in enumerate(labels):
        if not 0 <= label < classes:
            raise ValueError(
                f"sample {sample} has the label {label}; the scores are of {classes} classes, so labels are 0 to {classes - 1}. "
                "Correct the labels, or leave out samples without one"
            )


def fit_temperature(logits: Array, labels: Array) -> float:
    """Fits the temperature by negative log likelihood; raises `ValueError` as `softmax`, or for a label that is no class."""
    scores = np.asarray(logits, dtype=np.float64)
    softmax(scores)
    classes = np.asarray(labels, dtype=np.int64)
    check_labels(classes.tolist(), scores.shape[1])
    rows = np.arange(len(scores))
    shifted = scores - scores.max(axis=1, keepdims=True)
    right = shifted[rows, classes]

    def loss(log_temperature: float) -> float:
        scaled = shifted / np.exp(log_temperature)
        return float(np.mean(np.log(np.exp(scaled).sum(axis=1)) - right / np.exp(log_temperature)))

    low, high = float(np.log(LEAST_TEMPERATURE)), float(np.log(LARGEST_TEMPERATURE))
    # The loss is convex in 1 / T, so it has one minimum: golden-section search.
    ratio = (np.sqrt(5.0) - 1.0) / 2.0
    left, right_end = high - ratio * (high - low), low + ratio * (high - low)
    loss_left, loss_right = loss(left), loss(right_end)
    while high - low > 1e-6:
        if loss_left <= loss_right:
            high, right_end, loss_right = right_end, left, loss_left
            left = high - ratio * (high - low)
            loss_left = loss(left)
        else:
            low, left, loss_left = left, right_end, loss_right
            right_end = low + ratio * (high - low)
            loss_right = loss(right_end)
    return float(np.exp((low + high) / 2.0))


def calibration_error(probabilities: Array, correct: Array, bins: int = BINS) -> float:
    """Returns the expected calibration error: the mean distance between stated probability and share of right answers."""
    stated = np.asarray(probabilities, dtype=np.float64)
    right = np.asarray(correct, dtype=np.float64)
    if stated.shape != right.shape or stated.size == 0:
        raise ValueError("probabilities and answers must have the same length, at least 1")
    bin_of = np.minimum((stated * bins).astype(np.int64), bins - 1)
    gaps = np.bincount(bin_of, weights=stated - right, minlength=bins)
    return float(np.abs(gaps).sum() / stated.size)

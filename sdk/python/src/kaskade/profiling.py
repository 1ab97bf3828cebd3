"""Measures a batch function for the planner: a profile that `kaskade plan` reads.

The function is called exactly as a replica calls it, with checked inputs and outputs.
"""

from __future__ import annotations

import json
import math
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from .batch import Answer, Inputs
from .confidence import Estimator, calibration_error, check_labels, class_spread, confidence, fit_temperature, softmax
from .errors import KaskadeError
from .selection import selection_part, shuffled
from .stages import Stage
from .tensors import Array, as_array, encode
from .wire import Cost as Money

VERSION = 1
"""Version of the format."""
BATCHES = (1, 2, 4, 8, 16, 32)
FEWEST_TIMES = 20
"""Batches whose quantiles say something. With fewer, a profile has the median alone."""
ORDER = 7
"""Seed of the order in which samples are run, that of `kaskade profile`."""
LOGITS = "logits"
"""The output from which an ingress computes margins and entropies."""


@dataclass(frozen=True)
class Power:
    """A model of energy: watts of an idle machine, and watts per busy core on top."""

    idle_watts: float = 10.0
    active_watts: float = 10.0

    def source(self) -> str:
        """Returns the name under which a profile states where its joules come from."""
        return f"modelled: {self.idle_watts:g} W idle + {self.active_watts:g} W per busy core"


@dataclass(frozen=True)
class Cost:
    """Cost of one batch. Figures that are `None` are unknown."""

    batch: int
    latency_s: float
    """Median, seconds."""
    p95_s: float
    p99_s: float
    energy_j: float | None
    utilisation: float | None
    quantiles: Mapping[str, float] | None = None
    """As multiples of the median: `p10`, `p90`, `p95`, `p99`; `None` of too few batches."""

    def to_json(self) -> dict[str, Any]:
        """Returns it as a profile holds it."""
        cost: dict[str, Any] = {"batch": self.batch, "latency_s": self.latency_s}
        if self.energy_j is not None:
            cost["energy_j"] = self.energy_j
        if self.utilisation is not None:
            cost["utilisation"] = self.utilisation
        if self.quantiles is not None:
            cost["quantiles"] = dict(self.quantiles)
        return cost


@dataclass(frozen=True)
class VariantProfile:
    """Measurements of one variant."""

    name: str
    parameters: int
    costs: tuple[Cost, ...]
    estimator: Estimator
    temperature: float
    ece_before: float
    ece_after: float
    predictions: tuple[int, ...]
    confidences: tuple[float, ...]
    correct: tuple[bool, ...]
    device: str
    energy_source: str
    margins: tuple[float, ...] = ()
    """First minus second probability of every sample; empty for answers that are no classes, like the entropies."""
    entropies: tuple[float, ...] = ()
    money: Money | None = None
    """Mean cost of a request in money, if every answer states one."""
    input_bytes: tuple[int, ...] = ()
    """Bytes of every sample's inputs."""
    repeats: int | None = None
    """Number of samples whose inputs are those of an earlier one; `None` if unknown."""

    @property
    def accuracy(self) -> float:
        """Share of right answers."""
        return sum(self.correct) / len(self.correct)

    def to_json(self) -> dict[str, Any]:
        """Returns it as a profile holds it."""
        validation = {
            "predictions": list(self.predictions),
            "confidences": list(self.confidences),
            "correct": list(self.correct),
        }
        if self.margins:
            validation |= {"margins": list(self.margins), "entropies": list(self.entropies)}
        variant: dict[str, Any] = {
            "name": self.name,
            "parameters": self.parameters,
            "costs": [cost.to_json() for cost in self.costs],
            "calibration": {"estimator": self.estimator.to_json(), "temperature": self.temperature},
            "ece": {"before": self.ece_before, "after": self.ece_after},
            "validation": validation,
        }
        if self.money is not None:
            variant["money"] = {"per_request": self.money.amount, "source": self.money.source}
        return variant


@dataclass
class Profile:
    """A profile: the measurements of a family, smallest variant first."""

    app: str
    device: str = ""
    energy_source: str = ""
    estimator: dict[str, Any] = field(default_factory=dict)
    samples: int = 0
    variants: list[dict[str, Any]] = field(default_factory=list)
    more: dict[str, Any] = field(default_factory=dict)
    """Other fields of the file, such as `hop`, `input_bytes` and `judge`. They are kept."""

    @classmethod
    def load(cls, path: str | Path) -> Profile:
        """Reads a profile, such as one that `kaskade profile` wrote."""
        text = json.loads(Path(path).read_text(encoding="utf-8"))
        if text.get("version") != VERSION:
            raise ValueError(f"{path} has version {text.get('version')}; this package reads version {VERSION}")
        fields = ("app", "device", "energy_source", "estimator", "samples", "variants")
        more = {name: value for name, value in text.items() if name not in (*fields, "version")}
        return cls(**{name: text[name] for name in fields}, more=more)

    def add(self, variant: VariantProfile) -> Profile:
        """Adds a variant as the largest, in place of one of the same name; returns the profile.

        Comparisons of texts with the variant that was the largest are dropped: the added one has no texts to compare.
        `device` lists what every variant was measured on. It does not say which variant was measured where, so the device of a replaced
        variant stays in it: set `device` anew if no variant is left that was measured there.
        Raises `ValueError` if it was measured on another number of samples than the others.
        """
        samples = len(variant.correct)
        others = [other for other in self.variants if other["name"] != variant.name]
        if others and samples != self.samples:
            raise ValueError(f"`{variant.name}` has {samples} samples and the profile {self.samples}; use the same set")
        if not others:
            self.device, self.energy_source = variant.device, variant.energy_source
            self.estimator, self.samples = variant.estimator.to_json(), samples
            if variant.input_bytes:
                self.more["input_bytes"] = list(variant.input_bytes)
            if variant.repeats is not None:
                self.more["repeats"] = variant.repeats
        added = variant.to_json()
        if any((cost.get("energy_j") is None) for other in others for cost in other["costs"]):
            # A planner must not compare joules with unknown figures.
            for cost in added["costs"]:
                cost.pop("energy_j", None)
        self.device = _listed(self.device, variant.device)
        if any("energy_j" in cost for cost in added["costs"]):
            self.energy_source = _listed(self.energy_source, variant.energy_source)
        self.more.pop("texts", None)
        for other in others:
            other["validation"].pop("agrees", None)
        self.variants = [*others, added]
        return self

    def to_json(self) -> dict[str, Any]:
        """Returns it as its file holds it."""
        return {
            "version": VERSION,
            "app": self.app,
            "device": self.device,
            "energy_source": self.energy_source,
            "estimator": self.estimator,
            "samples": self.samples,
            "variants": self.variants,
            **self.more,
        }

    def save(self, path: str | Path) -> None:
        """Writes the file."""
        Path(path).write_text(json.dumps(self.to_json()) + "\n", encoding="utf-8")


def profile(
    stage: Stage,
    samples: Sequence[Mapping[str, Any]],
    labels: Sequence[int] | Array,
    *,
    parameters: int = 0,
    batches: Sequence[int] = BATCHES,
    seconds: float = 0.15,
    rounds: int = 3,
    estimator: Estimator | None = None,
    predict: Callable[[Mapping[str, Array]], int] | None = None,
    correct: Callable[[Mapping[str, Array], int], bool] | None = None,
    power: Power | None = Power(),
    device: str = "",
) -> VariantProfile:
    """Measures a stage on labelled samples.

    Every batch size is run for `seconds` in each of `rounds` rounds, on samples from all over the set. `estimator` makes confidences of the stage's
    output (default: `given` if the function returns a confidence, else `max_squared`), with a temperature fitted to
    the `labels` of the selection part: the other samples prove the plans that are chosen by these confidences. `predict`
    returns the class of an answer's outputs (default: the largest score), and `correct` whether an answer is right
    (default: the class is the label). `power` models the energy; `None` leaves it unknown.

    Raises the error of the first sample that the function fails on, and `ValueError` for unusable samples.
    """
    truth = [_label(sample, label) for sample, label in enumerate(labels)]
    if not samples or len(samples) != len(truth):
        raise ValueError(f"there are {len(samples)} samples and {len(truth)} labels; both must be the same, at least 1")
    if not batches or min(batches) < 1 or rounds < 1:
        raise ValueError(f"the batch sizes are {list(batches)} and the rounds {rounds}; both must be at least 1")
    prepared: list[Inputs] = [{name: as_array(value) for name, value in sample.items()} for sample in samples]
    answers = _answers(stage, prepared)
    given = [answer.confidence for answer in answers]
    if estimator is None:
        estimator = Estimator("max_squared" if None in given else "given")
    scores = [answer.outputs.get(stage.output) for answer in answers]
    predictions = [predict(answer.outputs) if predict else _largest(stage, answer.outputs) for answer in answers]
    right = [
        correct(answer.outputs, label) if correct else prediction == label
        for answer, prediction, label in zip(answers, predictions, truth, strict=True)
    ]
    temperature = 1.0
    spread = None
    if estimator.kind == "given":
        if None in given:
            raise ValueError("the estimator is `given`, and the function returns no output `confidence`")
        confidences = np.array(given, dtype=np.float64)
        before = after = calibration_error(confidences, np.array(right))
    else:
        if any(score is None for score in scores):
            raise ValueError(f"the estimator `{estimator.kind}` reads the output `{stage.output}`, which is missing")
        _check_served_alike(stage, estimator, answers)
        logits = np.stack([np.asarray(score).ravel() for score in scores])
        # Of all samples, so that an error names the sample and not its place in the selection part.
        check_labels(truth, logits.shape[1])
        part = selection_part(len(truth))
        temperature = fit_temperature(logits[part], np.array(truth)[part])
        confidences = confidence(logits, estimator, temperature)
        before = calibration_error(softmax(logits).max(axis=1), np.array(right))
        after = calibration_error(softmax(logits, temperature).max(axis=1), np.array(right))
        if estimator.kind in ("max_squared", "margin") and stage.output == LOGITS:
            spread = class_spread(logits, temperature)
    encoded = [tuple((name, encode(name, array)["data"]) for name, array in sorted(one.items())) for one in prepared]
    costs = _costs(stage, prepared, sorted(set(batches)), seconds, rounds, power)
    return VariantProfile(
        name=stage.variant,
        parameters=parameters,
        costs=costs,
        estimator=estimator,
        temperature=temperature,
        ece_before=before,
        ece_after=after,
        predictions=tuple(max(int(prediction), 0) for prediction in predictions),
        confidences=tuple(float(value) for value in confidences),
        correct=tuple(bool(value) for value in right),
        device=device or f"cpu ({platform.processor() or platform.machine()}, {_cores()} cores), Python",
        energy_source=power.source() if power else "unknown",
        margins=() if spread is None else tuple(spread[0].tolist()),
        entropies=() if spread is None else tuple(spread[1].tolist()),
        money=_money(answers),
        input_bytes=tuple(sum(len(data) for _, data in one) for one in encoded),
        repeats=len(encoded) - len(set(encoded)),
    )


def _label(sample: int, label: Any) -> int:
    number = int(label)
    if isinstance(label, float | np.floating) and number != label:
        raise ValueError(f"sample {sample} has the label {label}; a label is the number of a class")
    return number


def _listed(names: str, name: str) -> str:
    """Returns a list of names with a further one, unless it has that."""
    # A name may hold commas itself.
    return names if f", {name}, " in f", {names}, " else f"{names}, {name}"


def _answers(stage: Stage, samples: list[Inputs]) -> list[Answer]:
    answers: list[Answer] = []
    size = stage.batching.max_batch
    for start in range(0, len(samples), size):
        for index, outcome in enumerate(stage.run_batch(samples[start : start + size]), start):
            if isinstance(outcome, KaskadeError):
                outcome.message = f"sample {index}: {outcome.message}"
                raise outcome
            answers.append(outcome)
    return answers


def _money(answers: list[Answer]) -> Money | None:
    """Returns the mean of the costs that the answers state, with the least certain of their sources."""
    stated = [Money.stated(answer.outputs) for answer in answers]
    costs = [cost for cost in stated if cost is not None]
    if len(costs) < len(answers):
        return None
    sources = ("priced", "measured", "modelled")
    return Money(statistics.fmean(cost.amount for cost in costs), max((c.source for c in costs), key=sources.index))


def _quantiles(ascending: list[float]) -> dict[str, float] | None:
    if len(ascending) < FEWEST_TIMES:
        return None
    median = ascending[math.ceil(0.5 * len(ascending)) - 1]
    shares = {"p10": 0.1, "p90": 0.9, "p95": 0.95, "p99": 0.99}
    return {name: ascending[math.ceil(share * len(ascending)) - 1] / median for name, share in shares.items()}


def _check_served_alike(stage: Stage, estimator: Estimator, answers: list[Answer]) -> None:
    """Raises `ValueError` if an app would take other confidences than the profile: it takes those that a function gives, and
    computes others from the output `logits`, those of several tokens by `top_k` of each token."""
    if any(answer.confidence is not None for answer in answers):
        raise ValueError(
            f"the estimator is `{estimator.kind}`, and the function returns an output `confidence`, which an app takes instead: "
            "name the estimator `given`, or return none"
        )
    if stage.output != LOGITS:
        raise ValueError(
            f"the estimator `{estimator.kind}` reads the output `{stage.output}`, and an app computes it from `{LOGITS}`: rename the "
            "output, or return an output `confidence`"
        )
    tokens = (np.shape(answer.outputs[LOGITS])[:-1] for answer in answers)
    if estimator.kind == "top_k" and any(math.prod(shape) > 1 for shape in tokens):
        raise ValueError(
            f"the output `{LOGITS}` has scores of several tokens, for which a profile has no `top_k`: return an output `confidence`"
        )


def _largest(stage: Stage, outputs: Mapping[str, Array]) -> int:
    scores = outputs.get(stage.output)
    return 0 if scores is None else int(np.argmax(scores))


@dataclass
class _Size:
    """The batches of one size, one after the other and again from the first, and what was measured of them."""

    size: int
    samples: list[Inputs]
    first: int = 0
    """Where the next batch begins."""
    times: list[float] = field(default_factory=list)
    energies: list[float] = field(default_factory=list)
    utilisations: list[float] = field(default_factory=list)

    def run(self, stage: Stage) -> float:
        """Runs the next batch; returns the seconds that it took. Raises the error of a request that failed."""
        count = len(self.samples)
        requests = [self.samples[(self.first + index) % count] for index in range(self.size)]
        self.first = (self.first + self.size) % count
        start = time.perf_counter()
        outcomes = stage.run_batch(requests)
        took = time.perf_counter() - start
        for outcome in outcomes:
            if isinstance(outcome, KaskadeError):
                outcome.message = f"at batch size {self.size}: {outcome.message}"
                raise outcome
        return took

    def round(self, stage: Stage, seconds: float, power: Power | None) -> None:
        """Runs batches for a while, at least one. The first run warms caches up and does not count."""
        self.run(stage)
        began, busy = time.perf_counter(), time.process_time()
        times = [self.run(stage)]
        while time.perf_counter() - began < seconds:
            times.append(self.run(stage))
        wall, busy = time.perf_counter() - began, time.process_time() - busy
        self.times.extend(times)
        if power is not None:
            self.energies.append((power.idle_watts * wall + power.active_watts * busy) / len(times))
        self.utilisations.append(min(busy / (wall * _cores()), 1.0))

    def cost(self) -> Cost:
        times = sorted(self.times)
        return Cost(
            batch=self.size,
            latency_s=statistics.median(times),
            p95_s=times[int(0.95 * (len(times) - 1))],
            p99_s=times[int(0.99 * (len(times) - 1))],
            energy_j=statistics.median(self.energies) if self.energies else None,
            utilisation=statistics.median(self.utilisations),
            quantiles=_quantiles(times),
        )


def _costs(
    stage: Stage, samples: list[Inputs], batches: list[int], seconds: float, rounds: int, power: Power | None
) -> tuple[Cost, ...]:
    """Measures all batch sizes in every round, so that other load that lasts a second affects one round of each size."""
    # The first samples may be alike. The same order for every variant.
    order = [samples[place] for place in shuffled(len(samples), ORDER)]
    # Each size continues where it ended in the round before: few runs of a slow stage are of different samples.
    sizes = [_Size(batch, order) for batch in batches]
    for _ in range(rounds):
        for size in sizes:
            size.round(stage, seconds, power)
    return tuple(size.cost() for size in sizes)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

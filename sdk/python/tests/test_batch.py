import json
import os
import subprocess
import sys
import tempfile
import unittest
import unittest.mock
from pathlib import Path
from typing import Any

import numpy as np

import kaskade
from kaskade import wire
from kaskade.batch import Answer
from kaskade.confidence import Estimator, fit_temperature
from kaskade.errors import BadOutput, ModelFailed, Overloaded, InvalidInput
from kaskade.profiling import Cost
from kaskade.replica import _encode
from kaskade.selection import selection_part, shuffled


def numbers(*values: float) -> list[dict[str, np.ndarray]]:
    return [{"x": np.array([value], np.float32)} for value in values]


class Clock:
    """A clock that only the measured function advances."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now

    process_time = perf_counter


def added(name: str, **changes: Any) -> kaskade.VariantProfile:
    """A measured variant of two samples."""
    fields: dict[str, Any] = {
        "parameters": 0,
        "costs": (Cost(1, 0.1, 0.1, 0.1, energy_j=1.0, utilisation=0.5),),
        "estimator": Estimator(),
        "temperature": 1.0,
        "ece_before": 0.0,
        "ece_after": 0.0,
        "predictions": (1, 0),
        "confidences": (0.5, 0.5),
        "correct": (True, False),
        "device": "cpu (x86_64, 2 cores), Python",
        "energy_source": "modelled: 10 W idle + 10 W per busy core",
    }
    return kaskade.VariantProfile(name, **{**fields, **changes})


class RunBatch(unittest.TestCase):
    def test_requests_are_stacked_and_answers_split(self) -> None:
        shapes = []

        @kaskade.stage("app", "double")
        def double(x: np.ndarray) -> dict[str, np.ndarray]:
            shapes.append(x.shape)
            return {"y": 2 * x, "confidence": np.linspace(0, 1, len(x))}

        answers = double.run_batch(numbers(1, 2, 3))
        self.assertEqual(shapes, [(3, 1)])
        self.assertEqual([answer.outputs["y"].tolist() for answer in answers], [[2], [4], [6]])
        self.assertEqual([answer.confidence for answer in answers], [0.0, 0.5, 1.0])
        self.assertNotIn("confidence", answers[0].outputs)

    def test_requests_of_other_shapes_are_run_apart_and_keep_their_order(self) -> None:
        @kaskade.stage("app", "size", output="size")
        def size(x: np.ndarray) -> np.ndarray:
            return np.full((len(x), 1), x.shape[1])

        requests = [{"x": np.zeros(length, np.float32)} for length in (1, 2, 1, 3)]
        self.assertEqual([answer.outputs["size"][0] for answer in size.run_batch(requests)], [1, 2, 1, 3])

    def test_scores_of_any_type_of_number_are_sent_as_fp32(self) -> None:
        """A stage with logits of numpy's default type was profiled and planned, and every request failed."""

        @kaskade.stage("app", "scores")
        def scores(x: np.ndarray) -> np.ndarray:
            return np.eye(10)[x[:, 0].astype(int)]

        (answer,) = scores.run_batch(numbers(3))
        self.assertEqual(answer.outputs["logits"].dtype, np.float32)
        (sent,) = wire.unpack(_encode(wire.StageRequest(1, "i", {}), "r", answer, wire.Hop("s")))["outputs"]
        self.assertEqual(sent["datatype"], "FP32")
        for dtype in (np.float16, np.int64, np.uint8, np.bool_, ">f8"):
            (answer,) = scores.with_(function=lambda x, dtype=dtype: np.eye(10)[x[:, 0].astype(int)].astype(dtype)).run_batch(numbers(3))
            self.assertEqual(answer.outputs["logits"].dtype, np.float32, dtype)
            self.assertEqual(answer.outputs["logits"].tolist(), np.eye(10)[3].tolist())

        outputs = {name: np.ones((1, 2)) for name in ("start_logits", "end_logits", "probabilities", "cost")}
        for stage in (
            scores.with_(function=lambda x: outputs),
            scores.with_(function=lambda requests: [outputs], per_request=True),
        ):
            (answer,) = stage.run_batch(numbers(1))
            kinds = {name: str(array.dtype) for name, array in answer.outputs.items()}
            fp32 = dict.fromkeys(("start_logits", "end_logits", "probabilities"), "float32")
            self.assertEqual(kinds, fp32 | {"cost": "float64"})

    def test_scores_beyond_the_range_of_fp32_fail_alone(self) -> None:
        @kaskade.stage("app", "scores")
        def scores(x: np.ndarray) -> np.ndarray:
            return x.astype(np.float64) * 1e300

        fine, wrong = scores.run_batch(numbers(0, 1))
        self.assertIsInstance(fine, Answer)
        self.assertIsInstance(wrong, BadOutput)
        self.assertIn("beyond the range of FP32", wrong.message)

    def test_a_function_that_returns_none_is_told_so(self) -> None:
        for function, per_request in [(lambda x: None, False), (lambda requests: None, True)]:
            stage = kaskade.stage("app", "nothing", per_request=per_request)(function)
            (outcome,) = stage.run_batch(numbers(1))
            self.assertIsInstance(outcome, BadOutput)
            self.assertIn("the function returned None", outcome.message)
        for function, per_request in [(lambda x: {"y": None}, False), (lambda requests: [{"y": None}], True)]:
            stage = kaskade.stage("app", "nothing", per_request=per_request)(function)
            (outcome,) = stage.run_batch(numbers(1))
            self.assertIn("output `y` is None", outcome.message)

    def test_a_request_that_raises_fails_alone(self) -> None:
        calls = []

        @kaskade.stage("app", "picky")
        def picky(x: np.ndarray) -> np.ndarray:
            calls.append(len(x))
            if (x == 13).any():
                raise RuntimeError("thirteen")
            return x

        answers = picky.run_batch(numbers(*range(10, 18)))
        self.assertEqual([type(answer) for answer in answers], [Answer] * 3 + [ModelFailed] + [Answer] * 4)
        self.assertIn("RuntimeError: thirteen", str(answers[3]))
        self.assertEqual(calls, [8, 4, 2, 2, 1, 1, 4])

    def test_errors_that_no_message_can_hold_are_told_nevertheless(self) -> None:
        """The replica failed, and the next one with the same request."""

        class Mute(Exception):
            def __str__(self) -> str:
                raise RuntimeError("no text")

        raised: list[Exception] = [OSError("no file caf\udce9.txt"), Mute(), Overloaded({"at": object()})]  # type: ignore[arg-type]

        @kaskade.stage("app", "raising")
        def raising(x: np.ndarray) -> np.ndarray:
            raise raised[int(x[0, 0])]

        request = wire.StageRequest(1, "i", {})
        outcomes = raising.run_batch(numbers(0, 1, 2))
        told = [wire.unpack(_encode(request, "r", outcome, wire.Hop("s")))["error"] for outcome in outcomes]
        self.assertEqual([error["code"] for error in told], ["KSK0008", "KSK0008", "KSK0006"])
        self.assertIn(r"no file caf\udce9.txt", told[0]["message"])
        self.assertIn("Mute", told[1]["message"])
        named = Answer({"caf\udce9": np.ones(1)})
        error = wire.unpack(_encode(request, "r", named, wire.Hop("s")))["error"]
        self.assertEqual(error["code"], "KSK0009")
        self.assertIn(r"caf\udce9", error["message"])

    def test_typed_errors_keep_their_code(self) -> None:
        @kaskade.stage("app", "busy")
        def busy(x: np.ndarray) -> np.ndarray:
            raise Overloaded("later")

        self.assertIsInstance(busy.run_batch(numbers(1))[0], Overloaded)

    def test_wrong_inputs_are_refused_and_not_run(self) -> None:
        @kaskade.stage("app", "strict", inputs={"x": kaskade.Input("FP32", (-1, 2))})
        def strict(x: np.ndarray) -> np.ndarray:
            return x

        good = {"x": np.zeros((3, 2), np.float32)}
        for inputs, said in [
            ({}, "missing"), ({**good, "y": good["x"]}, "unknown"), ({"x": np.zeros((3, 2))}, "FP64"),
            ({"x": np.zeros((3, 3), np.float32)}, "shape"), ({"x": np.full((3, 2), np.nan, np.float32)}, "NaN"),
        ]:
            bad, well = strict.run_batch([inputs, good])
            self.assertIsInstance(bad, InvalidInput)
            self.assertIn(said, str(bad))
            self.assertIsInstance(well, Answer)

    def test_inputs_that_are_no_arrays_become_arrays_or_are_refused(self) -> None:
        seen = []

        @kaskade.stage("app", "double")
        def double(x: np.ndarray) -> np.ndarray:
            seen.append((x.dtype, x.shape))
            return np.ones((len(x), 2))

        answers = double.run_batch([{"x": [1.0, 2.0]}, {"x": (3.0, 4.0)}, {"x": "text"}, {"x": 1}])
        self.assertEqual({type(answer) for answer in answers}, {Answer})
        self.assertEqual(seen, [(np.float32, (2, 2)), (object, (1, 1)), (np.int64, (1,))])
        for inputs in ({"x": None}, {"x": [[1], [1, 2]]}, {"x": 1j}, {7: [1.0]}, [1.0], None):
            bad, well = double.run_batch([inputs, {"x": [1.0]}])
            self.assertIsInstance(bad, InvalidInput, inputs)
            self.assertIsInstance(well, Answer)

    def test_unsound_outputs_are_bad_output(self) -> None:
        for returned in [
            lambda x: np.zeros((len(x) + 1, 1)), lambda x: np.zeros((len(x), 0)), lambda x: {}, lambda x: 3.0,
            lambda x: {"y": x, "confidence": np.full(len(x), 1.5)}, lambda x: {"y": x, "confidence": np.full(len(x), np.nan)},
            lambda x: {"y": x, "confidence": np.zeros((len(x), 2))}, lambda x: {"y": x, "confidence": np.zeros(len(x))[:1]},
        ]:
            stage = kaskade.stage("app", "unsound")(lambda x, returned=returned: returned(x))
            for answer in stage.run_batch(numbers(1, 2)):
                self.assertIsInstance(answer, BadOutput)

        @kaskade.stage("app", "log")
        def log(x: np.ndarray) -> np.ndarray:
            with np.errstate(all="ignore"):
                return np.log(x)

        answers = log.run_batch(numbers(1, 0, 2, -1))
        self.assertEqual([type(answer) for answer in answers], [Answer, BadOutput, Answer, BadOutput])

    def test_what_no_tensor_can_hold_is_bad_output_and_not_run_again(self) -> None:
        requests = [{"x": np.ones(2, np.float32)} for _ in range(8)]
        for returned in [
            None,
            np.array([object()] * 8),
            [[1], [1, 2]] * 4,
            (row for row in range(8)),
            {"logits": np.ones((8, 2)), "confidence": ["sure"] * 8},
            {"logits": np.ones((8, 2)), "confidence": None},
        ]:
            runs = []

            @kaskade.stage("app", "stage")
            def give(x: np.ndarray, runs: list[int] = runs, returned: object = returned) -> object:
                runs.append(len(x))
                return returned

            outcomes = give.run_batch(requests)
            self.assertEqual({type(outcome) for outcome in outcomes}, {BadOutput}, returned)
            self.assertEqual(runs, [8], "another run would give the same")
        named = kaskade.stage("app", "stage")(lambda x: {7: x}).run_batch(requests)
        self.assertEqual(list(named[0].outputs), ["7"], "names are texts on the wire")

        @kaskade.stage("app", "stage", per_request=True)
        def each(batch: list[dict[str, np.ndarray]]) -> list[object]:
            return [{"y": None}, {"y": 1.0, "confidence": "sure"}, {"y": 1.0, "confidence": 0.5}]

        outcomes = each.run_batch(requests[:3])
        self.assertEqual([type(outcome) for outcome in outcomes], [BadOutput, BadOutput, Answer])

    def test_a_function_of_a_list_of_requests(self) -> None:
        @kaskade.stage("app", "each", per_request=True)
        def each(batch: list[dict[str, np.ndarray]]) -> list[object]:
            return [Overloaded("odd") if inputs["x"][0] % 2 else {"y": inputs["x"], "confidence": 0.5} for inputs in batch]

        answers = each.run_batch(numbers(1, 2))
        self.assertIsInstance(answers[0], Overloaded)
        self.assertEqual((answers[1].outputs["y"].tolist(), answers[1].confidence), ([2.0], 0.5))

    def test_one_text_for_each_request_is_an_output(self) -> None:
        @kaskade.stage("app", "sign", output="sign")
        def sign(x: np.ndarray) -> np.ndarray:
            return np.where(x[:, 0] > 0, "plus", "minus")

        answers = sign.run_batch(numbers(1, -1))
        self.assertEqual([answer.outputs["sign"].item() for answer in answers], [b"plus", b"minus"])

    def test_texts_are_stacked(self) -> None:
        @kaskade.stage("app", "length", output="length")
        def length(text: np.ndarray) -> np.ndarray:
            return np.array([[len(row[0])] for row in text])

        requests = [{"text": np.array([text], dtype=object)} for text in (b"a", b"abc")]
        self.assertEqual([answer.outputs["length"][0] for answer in length.run_batch(requests)], [1, 3])


class Profiles(unittest.TestCase):
    def test_a_stage_is_measured(self) -> None:
        @kaskade.stage("app", "sign", max_batch=8)
        def sign(x: np.ndarray) -> np.ndarray:
            return np.concatenate([-x, x], axis=1)

        draw = np.random.default_rng(2)
        values = draw.normal(size=60).astype(np.float32)
        labels = (values + draw.normal(size=60) * 0.5 > 0).astype(int)
        measured = kaskade.profile(sign, numbers(*values), labels, batches=(1, 4), seconds=0.01, rounds=2)
        self.assertEqual(measured.accuracy, np.mean((values > 0) == labels))
        self.assertEqual([cost.batch for cost in measured.costs], [1, 4])
        for cost in measured.costs:
            self.assertTrue(0 < cost.latency_s <= cost.p99_s and cost.energy_j and 0 <= cost.utilisation <= 1)
        self.assertTrue(all(0 <= value <= 1 for value in measured.confidences))
        self.assertTrue(all(0 <= margin <= 1 for margin in measured.margins) and len(measured.margins) == 60)
        self.assertEqual((len(measured.entropies), measured.input_bytes), (60, (4,) * 60))
        self.assertEqual(kaskade.Profile("app").add(measured).to_json()["repeats"], 0)
        self.assertIsNone(measured.money, "unknown is not zero")
        written = measured.to_json()
        self.assertEqual(len(written["validation"]["margins"]), 60)
        self.assertTrue(written["costs"][0]["quantiles"]["p10"] <= 1 <= written["costs"][0]["quantiles"]["p90"])

    def test_the_samples_that_prove_a_plan_fit_no_temperature(self) -> None:
        @kaskade.stage("app", "sign", max_batch=64)
        def sign(x: np.ndarray) -> np.ndarray:
            return np.concatenate([-x, x], axis=1)

        draw = np.random.default_rng(3)
        values = draw.normal(size=200).astype(np.float32)
        labels = (values + draw.normal(size=200) > 0).astype(int)
        selected = np.zeros(200, bool)
        selected[selection_part(200)] = True
        # The labels of the other samples say the opposite; the temperature does not know.
        others = np.where(selected, labels, 1 - labels)
        temperatures = []
        for truth in (labels, others):
            measured = kaskade.profile(sign, numbers(*values), truth, batches=(1,), seconds=0.001, rounds=1)
            temperatures.append(measured.temperature)
        self.assertEqual(temperatures[0], temperatures[1])

    def test_a_label_that_is_no_class_names_its_sample(self) -> None:
        @kaskade.stage("app", "sign")
        def sign(x: np.ndarray) -> np.ndarray:
            return np.concatenate([-x, x], axis=1)

        for label in (-1, 2):
            with self.assertRaisesRegex(ValueError, f"sample 1 has the label {label}; .* 2 classes"):
                kaskade.profile(sign, numbers(1, -1, 1), [1, label, 1], batches=(1,), seconds=0.001, rounds=1)
            with self.assertRaisesRegex(ValueError, f"sample 0 has the label {label}"):
                fit_temperature(np.ones((1, 2)), np.array([label]))

    def test_the_stated_cost_becomes_the_money_of_a_request(self) -> None:
        @kaskade.stage("app", "paid", max_batch=4)
        def paid(x: np.ndarray) -> dict[str, np.ndarray]:
            source = np.where(x[:, 0] > 1, "modelled", "measured").astype(object)
            return {"logits": np.concatenate([-x, x], axis=1), "cost": x[:, 0], "cost_source": source}

        measured = kaskade.profile(paid, numbers(1, 3), [1, 1], batches=(1,), seconds=0.001, rounds=1)
        self.assertEqual(measured.to_json()["money"], {"per_request": 2.0, "source": "modelled"})

    def test_what_a_profile_has_besides_is_kept(self) -> None:
        @kaskade.stage("app", "sign")
        def sign(x: np.ndarray) -> np.ndarray:
            return np.concatenate([-x, x], axis=1)

        measured = kaskade.profile(sign, numbers(1, -1), [1, 0], batches=(1,), seconds=0.001, rounds=1)
        twice = kaskade.profile(sign, numbers(1, -1, 1), [1, 0, 1], batches=(1,), seconds=0.001, rounds=1)
        self.assertEqual((measured.repeats, twice.repeats), (0, 1))
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "profile.json")
            fresh = kaskade.Profile("app").add(measured).to_json()
            self.assertEqual(fresh["input_bytes"], [4, 4])
            hop = {"median_s": 1e-4}
            path.write_text(json.dumps({**fresh, "hop": hop, "judge": "large", "input_bytes": [7, 8]}))
            other = kaskade.profile(sign.with_(variant="larger"), numbers(1, -1), [1, 0], batches=(1,), seconds=0.001, rounds=1)
            kept = kaskade.Profile.load(path).add(other).to_json()
        self.assertEqual([variant["name"] for variant in kept["variants"]], ["sign", "larger"])
        self.assertEqual((kept["hop"], kept["judge"], kept["input_bytes"]), (hop, "large", [7, 8]))

    def test_the_times_are_of_samples_from_all_over_the_set(self) -> None:
        """The first samples alone were run, of which batches of one had the very first."""
        clock = Clock()

        @kaskade.stage("app", "long", max_batch=64)
        def long(x: np.ndarray) -> np.ndarray:
            clock.now += 0.001 * x.size
            return np.ones((len(x), 2))

        # The shortest first.
        samples = [{"x": np.ones(length, np.float32)} for length in range(1, 101)]
        with unittest.mock.patch("kaskade.profiling.time", clock):
            one, four = kaskade.profile(long, samples, [1] * 100, batches=(4, 1), seconds=1.0).costs
        self.assertAlmostEqual(one.latency_s, 0.0505, delta=0.01)
        self.assertAlmostEqual(four.latency_s, 4 * 0.0505, delta=0.04)
        self.assertEqual((one.batch, four.batch), (1, 4))
        assert one.quantiles is not None
        self.assertLess(one.quantiles["p10"], 0.5, "the latency depends on the sample")
        self.assertGreater(one.quantiles["p90"], 1.5)

    def test_few_runs_of_a_slow_stage_are_of_different_samples(self) -> None:
        clock = Clock()
        ran: list[int] = []

        @kaskade.stage("app", "slow", max_batch=64)
        def slow(x: np.ndarray) -> np.ndarray:
            clock.now += 1.0
            ran.extend(x[:, 0].astype(int))
            return np.ones((len(x), 2))

        with unittest.mock.patch("kaskade.profiling.time", clock):
            kaskade.profile(slow, numbers(*range(100)), [1] * 100, batches=(1,), seconds=0.0, rounds=3)
        timed = ran[100:]
        # Each round warms up by one run and measures one. The order is the one of `kaskade profile`.
        self.assertEqual(timed, shuffled(100, 7)[:6])
        self.assertEqual(len(set(timed)), 6)
        self.assertTrue(any(place >= 50 for place in timed))
        ran.clear()
        with unittest.mock.patch("kaskade.profiling.time", clock):
            kaskade.profile(slow, numbers(0, 1, 2), [1] * 3, batches=(1, 8), seconds=0.0, rounds=3)
        self.assertEqual(len(ran[3:]), 3 * 2 * (1 + 8), "batches larger than the set have samples twice")

    def test_other_load_affects_one_round_of_each_size(self) -> None:
        clock = Clock()
        order: list[int] = []

        @kaskade.stage("app", "sign")
        def sign(x: np.ndarray) -> np.ndarray:
            clock.now += 1.0
            order.append(len(x))
            return np.ones((len(x), 2))

        with unittest.mock.patch("kaskade.profiling.time", clock):
            kaskade.profile(sign, numbers(1, 2), [1, 1], batches=(1, 2), seconds=0.0, rounds=2)
        self.assertEqual(order[1:], [1, 1, 2, 2] * 2)

    def test_a_size_that_fails_has_no_cost(self) -> None:
        """The time until the error was the latency of the size."""

        @kaskade.stage("app", "normalised", max_batch=2)
        def normalised(x: np.ndarray) -> np.ndarray:
            if len(x) == 1:
                raise RuntimeError("the variance of one value is unknown")
            return np.ones((len(x), 2))

        with self.assertRaisesRegex(ModelFailed, "at batch size 1: .*variance"):
            kaskade.profile(normalised, numbers(1, 2), [1, 1], batches=(1, 2), seconds=0.001, rounds=1)

    def test_devices_and_sources_of_all_variants_are_named(self) -> None:
        """Those of the first variant were named alone."""
        small = added("small").to_json()
        profile = kaskade.Profile("app", "cuda:0 NVIDIA H200", "NVML", {"kind": "max_squared"}, 2, [small])
        profile.add(added("middle")).add(added("large"))
        self.assertEqual(profile.device, "cuda:0 NVIDIA H200, cpu (x86_64, 2 cores), Python")
        self.assertEqual(profile.energy_source, "NVML, modelled: 10 W idle + 10 W per busy core")
        # A name that is a part of another is another.
        self.assertTrue(profile.add(added("other", device="cpu")).device.endswith(", Python, cpu"))
        # A variant without joules has no source of them.
        without = (Cost(1, 0.1, 0.1, 0.1, energy_j=None, utilisation=None),)
        before = profile.energy_source
        profile.add(added("unknown", costs=without, energy_source="unknown"))
        self.assertEqual(profile.energy_source, before)

    def test_answers_are_compared_with_the_largest_variant_alone(self) -> None:
        """What answers agreed with was the variant that had been the largest before."""
        texts = {"metric": "rouge_l", "min_score": 0.5}
        for name in ("larger", "large"):
            profile = kaskade.Profile("app", more={"texts": texts, "judge": "large"}).add(added("small"))
            profile.more["texts"] = texts
            profile.add(added("large"))
            profile.more["texts"] = texts
            for variant in profile.variants:
                variant["validation"]["agrees"] = [True, True]
            written = profile.add(added(name)).to_json()
            self.assertNotIn("texts", written)
            for variant in written["variants"]:
                self.assertNotIn("agrees", variant["validation"], variant["name"])
            self.assertEqual(written["judge"], "large")

    def test_files_are_utf_8_whatever_the_locale(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            profile, plan = Path(folder, "profile.json"), Path(folder, "plan.json")
            text = {**kaskade.Profile("app").add(added("small")).to_json(), "device": "Prüfstand"}
            profile.write_text(json.dumps(text, ensure_ascii=False), encoding="utf-8")
            replica = {"id": "r", "variant": "small", "worker": "w"}
            plan.write_text(json.dumps({"placement": [replica], "name": "Plän"}, ensure_ascii=False), encoding="utf-8")
            code = (
                "import sys, kaskade; p = kaskade.Profile.load(sys.argv[1]); p.save(sys.argv[1]);"
                "print(ascii(p.device), kaskade.place(sys.argv[2], 'small'))"
            )
            paths = os.pathsep.join(path for path in sys.path if path)
            env = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONPATH": paths}
            ran = subprocess.run(
                [sys.executable, "-c", code, str(profile), str(plan)], env=env, capture_output=True, timeout=60, check=False
            )
            self.assertEqual(ran.stdout.decode().strip(), f"{ascii('Prüfstand')} ['r']", ran.stderr.decode())
            self.assertEqual(json.loads(plan.read_text(encoding="utf-8"))["name"], "Plän")

    def test_a_given_confidence_is_taken(self) -> None:
        @kaskade.stage("app", "sure", output="class")
        def sure(x: np.ndarray) -> dict[str, np.ndarray]:
            return {"class": np.tile([[0.0, 1.0]], (len(x), 1)), "confidence": np.full(len(x), 0.25)}

        measured = kaskade.profile(sure, numbers(1, 2), [1, 0], batches=(1,), seconds=0.001, rounds=1)
        self.assertEqual((measured.estimator.kind, measured.confidences), ("given", (0.25, 0.25)))
        self.assertEqual((measured.accuracy, measured.ece_after), (0.5, 0.25))

    def test_confidences_that_an_app_would_not_take_are_refused(self) -> None:
        def profile(function: Any, estimator: Estimator | None = None, output: str = "logits") -> None:
            measured = kaskade.stage("app", "scored", output=output)(function)
            kaskade.profile(measured, numbers(1, 2), [1, 0], batches=(1,), seconds=0.001, rounds=1, estimator=estimator)

        def sure(x: np.ndarray) -> dict[str, np.ndarray]:
            return {"logits": np.tile([[0.0, 1.0]], (len(x), 1)), "confidence": np.full(len(x), 0.25)}

        def scores(x: np.ndarray) -> np.ndarray:
            return np.tile([[0.0, 1.0]], (len(x), 1))

        def tokens(x: np.ndarray) -> np.ndarray:
            return np.tile([[[0.0, 1.0, 2.0], [3.0, 1.0, 0.0]]], (len(x), 1, 1))

        profile(scores, Estimator("top_k", 2))
        with self.assertRaisesRegex(ValueError, "which an app takes instead"):
            profile(sure, Estimator("margin"))
        with self.assertRaisesRegex(ValueError, "an app computes it from `logits`"):
            profile(scores, output="scores")
        with self.assertRaisesRegex(ValueError, "several tokens"):
            profile(tokens, Estimator("top_k", 2))

    def test_what_gives_no_profile_is_refused_before_anything_is_measured(self) -> None:
        ran: list[int] = []

        @kaskade.stage("app", "sign")
        def sign(x: np.ndarray) -> np.ndarray:
            ran.append(len(x))
            return np.concatenate([-x, x], axis=1)

        for changes in ({"batches": ()}, {"batches": (1, 0)}, {"rounds": 0}):
            with self.assertRaisesRegex(ValueError, "at least 1"):
                kaskade.profile(sign, numbers(1, -1), [1, 0], seconds=0.001, **{"batches": (1,), "rounds": 1, **changes})
        with self.assertRaisesRegex(ValueError, "sample 1 has the label 0.7"):
            kaskade.profile(sign, numbers(1, -1), np.array([1.0, 0.7]), batches=(1,), seconds=0.001, rounds=1)
        self.assertEqual(ran, [])
        kaskade.profile(sign, numbers(1, -1), np.array([1.0, 0.0]), batches=(1,), seconds=0.001, rounds=1)

    def test_failures_name_the_sample(self) -> None:
        @kaskade.stage("app", "failing")
        def failing(x: np.ndarray) -> np.ndarray:
            raise ValueError("no")

        with self.assertRaisesRegex(ModelFailed, "sample 0: .*no"):
            kaskade.profile(failing, numbers(1), [0])
        with self.assertRaises(ValueError):
            kaskade.profile(failing, numbers(1), [0, 1])

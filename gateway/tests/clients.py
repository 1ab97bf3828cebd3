"""Asks a served app through tritonclient and openai; run by clients.sh."""

import os
import re
import subprocess
import unittest
from pathlib import Path

import numpy as np
import openai
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

PATIENT = {"x-kaskade-budget-ms": "60000"}
ROOT = Path(__file__).resolve().parents[2]


class Served:
    """`kaskade serve` of an app, until `stop`."""

    def __init__(self, app):
        command = [os.environ["KASKADE_BIN"], "serve", "--app", str(ROOT / app), "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=ROOT)
        self.address = None
        for line in self.process.stderr:
            found = re.search(r"gateway at http://([\d.:]+):", line)
            self.address = found.group(1) if found else self.address
            if "ask it" in line:
                return
        raise SystemExit(f"{app} is not served")

    def stop(self):
        self.process.terminate()
        rest = self.process.stderr.read()
        self.process.stderr.close()
        if self.process.wait() != 0:
            raise SystemExit(f"the program failed: {rest}")


class Triton(unittest.TestCase):
    """The digits, by tritonclient."""

    @classmethod
    def setUpClass(cls):
        cls.served = Served("examples/digits/app.toml")
        cls.client = triton.InferenceServerClient(cls.served.address)
        cls.image = np.linspace(0, 1, 64, dtype=np.float32).reshape(1, 8, 8)

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        cls.served.stop()

    def infer(self, binary_in=True, binary_out=True, **options):
        tensor = triton.InferInput("image", list(self.image.shape), "FP32")
        tensor.set_data_from_numpy(self.image, binary_data=binary_in)
        output = triton.InferRequestedOutput("logits", binary_data=binary_out)
        # A busy machine may take longer than the default budget. The client changes the headers that it is given.
        return self.client.infer("digits", [tensor], outputs=[output], headers=dict(PATIENT), **options)

    def test_metadata(self):
        self.assertTrue(self.client.is_server_live())
        self.assertTrue(self.client.is_server_ready())
        self.assertTrue(self.client.is_model_ready("digits"))
        self.assertFalse(self.client.is_model_ready("letters"))
        self.assertIn("binary_tensor_data", self.client.get_server_metadata()["extensions"])
        versions = self.client.get_model_metadata("digits")["versions"]
        self.assertIn("digits-large", versions)
        self.assertEqual(self.client.get_model_config("digits")["max_batch_size"], 0)
        self.assertTrue(all(row["state"] in ("READY", "UNAVAILABLE") for row in self.client.get_model_repository_index()))

    def test_every_form_of_tensors_gives_the_same_answer(self):
        expected = self.infer().as_numpy("logits")
        self.assertEqual(expected.shape, (10,))
        for binary_in in (True, False):
            for binary_out in (True, False):
                answer = self.infer(binary_in, binary_out, request_id="7")
                self.assertEqual(answer.get_response()["id"], "7")
                np.testing.assert_allclose(answer.as_numpy("logits"), expected, rtol=1e-6)
        for coding in ("gzip", "deflate"):
            answer = self.infer(request_compression_algorithm=coding, response_compression_algorithm=coding)
            np.testing.assert_array_equal(answer.as_numpy("logits"), expected)
        asynchronous = triton.InferInput("image", list(self.image.shape), "FP32")
        asynchronous.set_data_from_numpy(self.image)
        answer = self.client.async_infer("digits", [asynchronous], headers=dict(PATIENT)).get_result()
        np.testing.assert_array_equal(answer.as_numpy("logits"), expected)
        stats = self.client.get_inference_statistics("digits")["model_stats"]
        self.assertGreater(sum(row["inference_count"] for row in stats), 6)

    def test_errors(self):
        tensor = triton.InferInput("image", [2], "FP32")
        tensor.set_data_from_numpy(np.zeros(2, np.float32))
        with self.assertRaisesRegex(InferenceServerException, "KSK0003"):
            self.client.infer("digits", [tensor])
        with self.assertRaisesRegex(InferenceServerException, "KSK0004"):
            self.client.infer("letters", [tensor])


class OpenAi(unittest.TestCase):
    """The language models, by openai."""

    @classmethod
    def setUpClass(cls):
        cls.served = Served("examples/shakespeare/app.toml")
        cls.client = openai.OpenAI(base_url=f"http://{cls.served.address}/v1", api_key="none", max_retries=0)

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        cls.served.stop()

    def test_models_and_completions(self):
        model = self.client.models.list().data[0].id
        # The app stops at the end of a word; a text that never comes replaces its stops.
        asked = {"model": model, "prompt": "ROMEO:", "max_tokens": 12, "temperature": 0, "stop": "@@"}
        whole = self.client.completions.create(**asked, logprobs=1)
        self.assertEqual(whole.usage.completion_tokens, 12)
        self.assertEqual(whole.choices[0].finish_reason, "length")
        self.assertEqual(len(whole.choices[0].logprobs.token_logprobs), 12)
        self.assertTrue(whole.usage.kaskade["variant"])
        chunks = list(self.client.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
        text = "".join(chunk.choices[0].text for chunk in chunks if chunk.choices)
        self.assertEqual(text, whole.choices[0].text)
        self.assertEqual(chunks[-1].choices, [])
        self.assertEqual(chunks[-1].usage.completion_tokens, 12)

    def test_errors(self):
        with self.assertRaises(openai.NotFoundError):
            self.client.chat.completions.create(model="gpt-7", messages=[{"role": "user", "content": "x"}])
        with self.assertRaises(openai.BadRequestError):
            self.client.chat.completions.create(model="shakespeare", messages=[])


if __name__ == "__main__":
    unittest.main(verbosity=2)

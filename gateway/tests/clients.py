"""Asks served apps through tritonclient, by HTTP and gRPC, openai and huggingface_hub, and runs the conformance tools; run by clients.sh."""

import queue
import shutil
import tempfile
import unittest
from pathlib import Path
from typing import Literal

import numpy as np
import openai
import pydantic
import tritonclient.grpc as grpc
import tritonclient.http as triton
from conformance import Conformance, Fuzzed
from huggingface_hub import InferenceClient
from served import ROOT, Chat, Served
from tritonclient.utils import InferenceServerException

class Review(pydantic.BaseModel):
    """A format of answers."""

    verdict: Literal["good", "bad"]
    stars: Literal[1, 2, 3]


class Weather(pydantic.BaseModel):
    """The weather of a city."""

    city: Literal["Paris", "Oslo"]


PATIENT = {"x-kaskade-budget-ms": "60000"}


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


class TritonGrpc(unittest.TestCase):
    """The digits, by tritonclient over gRPC, on the same port."""

    @classmethod
    def setUpClass(cls):
        cls.served = Served("examples/digits/app.toml")
        cls.client = grpc.InferenceServerClient(cls.served.address)
        cls.image = np.linspace(0, 1, 64, dtype=np.float32).reshape(1, 8, 8)
        http = triton.InferenceServerClient(cls.served.address)
        tensor = triton.InferInput("image", list(cls.image.shape), "FP32")
        tensor.set_data_from_numpy(cls.image)
        cls.expected = http.infer("digits", [tensor], headers=dict(PATIENT)).as_numpy("logits")
        http.close()

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        cls.served.stop()

    def input(self):
        tensor = grpc.InferInput("image", list(self.image.shape), "FP32")
        tensor.set_data_from_numpy(self.image)
        return [tensor]

    def test_metadata(self):
        self.assertTrue(self.client.is_server_live())
        self.assertTrue(self.client.is_server_ready())
        self.assertTrue(self.client.is_model_ready("digits"))
        self.assertIn("statistics", self.client.get_server_metadata().extensions)
        metadata = self.client.get_model_metadata("digits", as_json=True)
        self.assertIn("digits-large", metadata["versions"])
        self.assertEqual(metadata["inputs"][0]["datatype"], "FP32")
        config = self.client.get_model_config("digits").config
        self.assertEqual((config.max_batch_size, config.input[0].data_type), (0, 11))
        self.assertTrue(all(row.state in ("READY", "UNAVAILABLE") for row in self.client.get_model_repository_index().models))
        stats = self.client.get_inference_statistics("digits").model_stats
        self.assertGreater(sum(row.inference_count for row in stats), 0)

    def test_answers_are_those_of_http(self):
        answer = self.client.infer("digits", self.input(), request_id="7", headers=dict(PATIENT))
        np.testing.assert_array_equal(answer.as_numpy("logits"), self.expected)
        self.assertEqual(answer.get_response().id, "7")
        self.assertEqual(answer.get_response().parameters["hops"].string_param, "digits-large")
        output = [grpc.InferRequestedOutput("logits")]
        for coding in ("gzip", "deflate"):
            answer = self.client.infer("digits", self.input(), outputs=output, compression_algorithm=coding, headers=dict(PATIENT))
            np.testing.assert_array_equal(answer.as_numpy("logits"), self.expected)
        answers = queue.Queue()
        self.client.async_infer("digits", self.input(), lambda result, error: answers.put((result, error)), headers=dict(PATIENT))
        result, error = answers.get(timeout=60)
        self.assertIsNone(error)
        np.testing.assert_array_equal(result.as_numpy("logits"), self.expected)

    def test_a_stream_answers_in_order_and_survives_an_error(self):
        answers = queue.Queue()
        self.client.start_stream(lambda result, error: answers.put((result, error)), headers=dict(PATIENT))
        for number in range(3):
            self.client.async_stream_infer("digits", self.input(), request_id=str(number))
        self.client.async_stream_infer("letters", self.input())
        self.client.async_stream_infer("digits", self.input(), request_id="last")
        found = [answers.get(timeout=60) for _ in range(5)]
        self.client.stop_stream()
        self.assertIn("KSK0004", str(found[3][1]))
        for (result, error), name in zip(found[:3] + found[4:], ["0", "1", "2", "last"]):
            self.assertIsNone(error)
            self.assertEqual(result.get_response().id, name)
            np.testing.assert_array_equal(result.as_numpy("logits"), self.expected)

    def test_errors(self):
        with self.assertRaisesRegex(InferenceServerException, "KSK0004") as raised:
            self.client.infer("letters", self.input())
        self.assertEqual(raised.exception.status(), "StatusCode.NOT_FOUND")
        tensor = grpc.InferInput("image", [2], "FP32")
        tensor.set_data_from_numpy(np.zeros(2, np.float32))
        with self.assertRaisesRegex(InferenceServerException, "KSK0003") as raised:
            self.client.infer("digits", [tensor])
        self.assertEqual(raised.exception.status(), "StatusCode.INVALID_ARGUMENT")
        late = self.late()
        self.assertEqual(late.status(), "StatusCode.DEADLINE_EXCEEDED", late)

    def late(self):
        """The error of a request whose deadline has passed. gRPC rounds a deadline up to a millisecond, within which some are answered."""
        for _ in range(1_000):
            try:
                self.client.infer("digits", self.input(), client_timeout=0.000_001)
            except InferenceServerException as error:
                return error
        self.fail("a thousand requests were answered, each within a millisecond")


class OpenAiChat(unittest.TestCase):
    """Chat and responses, by openai."""

    @classmethod
    def setUpClass(cls):
        cls.served = Chat()
        cls.client = openai.OpenAI(base_url=f"http://{cls.served.address}/v1", api_key="none", max_retries=0)
        cls.messages = [{"role": "user", "content": "Who is there?"}]

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        cls.served.stop()

    def test_chat(self):
        whole = self.client.chat.completions.create(model="chat", messages=self.messages, logprobs=True, top_logprobs=2)
        self.assertEqual(whole.choices[0].message.role, "assistant")
        self.assertGreater(whole.usage.prompt_tokens, 10)
        places = whole.choices[0].logprobs.content
        self.assertEqual(len(places[0].top_logprobs), 2)
        self.assertTrue("".join(place.token for place in places).startswith(whole.choices[0].message.content))
        self.assertEqual(bytes(places[0].bytes).decode(), places[0].token)
        chunks = list(self.client.chat.completions.create(model="chat", messages=self.messages, stream=True))
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        self.assertEqual(text, whole.choices[0].message.content)

    def test_a_format_is_parsed(self):
        asked = {"model": "chat", "messages": self.messages, "max_tokens": 100}
        for temperature in (0, 1):
            whole = self.client.chat.completions.parse(**asked, temperature=temperature, response_format=Review)
            self.assertIn(whole.choices[0].message.parsed.verdict, ("good", "bad"))
            self.assertEqual(whole.choices[0].finish_reason, "stop")
        response = self.client.responses.parse(model="chat", input="Who is there?", text_format=Review, max_output_tokens=100)
        self.assertIn(response.output_parsed.stars, (1, 2, 3))
        whole = self.client.chat.completions.create(**asked, extra_body={"structured_outputs": {"choice": ["to be", "not to be"]}})
        self.assertIn(whole.choices[0].message.content, ("to be", "not to be"))
        with self.assertRaises(openai.BadRequestError) as refused:
            self.client.chat.completions.create(**asked, response_format={"type": "xml"})
        self.assertEqual(refused.exception.param, "response_format")

    def test_tools_are_called(self):
        tools = [openai.pydantic_function_tool(Weather)]
        asked = {"model": "chat", "tools": tools, "tool_choice": {"type": "function", "function": {"name": "Weather"}}, "max_tokens": 100}
        whole = self.client.chat.completions.parse(messages=self.messages, **asked)
        self.assertEqual(whole.choices[0].finish_reason, "tool_calls")
        call = whole.choices[0].message.tool_calls[0]
        self.assertIn(call.function.parsed_arguments.city, ("Paris", "Oslo"))
        with self.client.chat.completions.stream(messages=self.messages, **asked) as stream:
            streamed = stream.get_final_completion().choices[0].message.tool_calls[0]
        self.assertEqual(streamed.function.arguments, call.function.arguments)
        result = {"role": "tool", "tool_call_id": call.id, "content": "sun"}
        again = self.client.chat.completions.create(model="chat", messages=[*self.messages, whole.choices[0].message, result], tools=tools, max_tokens=4)
        self.assertIsNone(again.choices[0].message.tool_calls)
        response = self.client.responses.create(
            model="chat", input="Who is there?", max_output_tokens=100, tool_choice={"type": "function", "name": "Weather"},
            tools=[{"type": "function", "name": "Weather", "parameters": tools[0]["function"]["parameters"], "strict": True}],
        )
        self.assertEqual((response.output[0].type, response.output[0].name), ("function_call", "Weather"))

    def test_responses(self):
        whole = self.client.responses.create(model="chat", input="Who is there?")
        self.assertEqual(whole.status, "completed")
        self.assertGreater(whole.usage.input_tokens, 10)
        self.assertTrue(whole.usage.kaskade["variant"])
        kinds, text = [], ""
        for event in self.client.responses.create(model="chat", input="Who is there?", stream=True):
            kinds.append(event.type)
            text += event.delta if event.type == "response.output_text.delta" else ""
        self.assertEqual((kinds[0], kinds[-1]), ("response.created", "response.completed"))
        self.assertEqual(text, whole.output_text)
        # The client's own helper puts the events together again.
        with self.client.responses.stream(model="chat", input="Who is there?") as stream:
            self.assertEqual(stream.get_final_response().output_text, whole.output_text)
        with self.assertRaisesRegex(openai.BadRequestError, "not stored"):
            self.client.responses.create(model="chat", input="x", previous_response_id=whole.id)


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
        logprobs = whole.choices[0].logprobs
        self.assertEqual(len(logprobs.token_logprobs), 12)
        self.assertEqual("".join(logprobs.tokens), whole.choices[0].text)
        self.assertEqual(logprobs.text_offset[1], len(logprobs.tokens[0]))
        self.assertTrue(whole.usage.kaskade["variant"])
        chunks = list(self.client.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
        text = "".join(chunk.choices[0].text for chunk in chunks if chunk.choices)
        self.assertEqual(text, whole.choices[0].text)
        self.assertEqual(chunks[-1].choices, [])
        self.assertEqual(chunks[-1].usage.completion_tokens, 12)

    def test_prompts_are_scored(self):
        # What lm-evaluation-harness sends, and how it reads the answer (`local-completions`).
        asked = {"model": "shakespeare", "temperature": 0, "logprobs": 1, "echo": True, "seed": 1234}
        whole = self.client.completions.create(prompt="ROMEO: But soft", max_tokens=1, **asked).choices[0]
        logprobs = whole.logprobs
        self.assertTrue(whole.text.startswith("ROMEO: But soft"))
        self.assertEqual("".join(logprobs.tokens), whole.text)
        self.assertEqual([logprobs.token_logprobs[0], logprobs.top_logprobs[0]], [None, None])
        self.assertTrue(all(logprob <= 0 for logprob in logprobs.token_logprobs[1:]))
        self.assertTrue(all(max(top.values()) >= logprob for top, logprob in zip(logprobs.top_logprobs[1:], logprobs.token_logprobs[1:])))
        # The answer of greedy search is the most probable token, exactly.
        self.assertEqual(logprobs.token_logprobs[-1], max(logprobs.top_logprobs[-1].values()))
        alone = self.client.completions.create(prompt="ROMEO: But soft", max_tokens=0, **asked)
        self.assertEqual(alone.choices[0].text, "ROMEO: But soft")
        self.assertEqual(alone.choices[0].logprobs.token_logprobs, logprobs.token_logprobs[:-1])
        self.assertEqual(alone.usage.completion_tokens, 0)

    def test_errors(self):
        with self.assertRaises(openai.NotFoundError):
            self.client.chat.completions.create(model="gpt-7", messages=[{"role": "user", "content": "x"}])
        with self.assertRaises(openai.BadRequestError):
            self.client.chat.completions.create(model="shakespeare", messages=[])


class HuggingFace(unittest.TestCase):
    """Small models of the fixtures, by Hugging Face's client, which sends every task to one address."""

    def client(self, task, fixture, **files):
        """Returns a client of a served copy of a fixture with these files beside it."""
        folder = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, folder)
        shutil.copytree(ROOT / "models/fixtures" / fixture, folder / "model")
        for name, content in files.items():
            (folder / "model" / f"{name}.json").write_text(content)
        app = f'name = "a"\ntask = "{task}"\nplan = {{ single = "a" }}\n[[variants]]\nname = "a"\ndir = "model"\n'
        (folder / "app.toml").write_text(app)
        served = Served(folder / "app.toml")
        self.addCleanup(served.stop)
        return InferenceClient(base_url=f"http://{served.address}", headers=PATIENT)

    def test_a_question_is_answered_from_its_context(self):
        context = "She was the keeper of the old light."
        answer = self.client("question_answering", "bert-question-answering").question_answering(question="Who?", context=context)
        self.assertEqual(context[answer.start : answer.end], answer.answer)

    def test_images_of_every_format_are_classified(self):
        sizes = '{"image_processor_type": "ViTImageProcessor", "size": {"height": 12, "width": 8}}'
        client = self.client("classification", "vit", preprocessor_config=sizes)
        images = ROOT / "models/fixtures/images"
        found = client.image_classification(images / "rgb.png")
        self.assertAlmostEqual(sum(one.score for one in found), 1.0, places=5)
        for name in ("rgb.bmp", "lossless.webp"):
            same = client.image_classification(images / name)
            self.assertEqual([one.label for one in same], [one.label for one in found])
        # With parameters the file comes as base64.
        self.assertEqual(len(client.image_classification(images / "rgb.jpg", top_k=2)), 2)

    def test_texts_are_compared_and_become_vectors(self):
        client = self.client("embedding", "sentence-transformer")
        same, other = client.sentence_similarity("the sea", other_sentences=["the sea", "the old keeper"])
        self.assertTrue(same > 0.999 and other < same, (same, other))
        self.assertEqual(client.feature_extraction("the sea").shape, (1, 12))


if __name__ == "__main__":
    unittest.main(verbosity=2)

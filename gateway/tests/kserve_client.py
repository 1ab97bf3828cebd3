"""Asks a served app through kserve's clients, by REST and gRPC; run by clients.sh in an environment of its own."""

import asyncio
import unittest

import numpy as np
from kserve import InferenceGRPCClient, InferenceRESTClient, InferInput, InferRequest
from kserve.inference_client import RESTConfig
from served import Served


class Kserve(unittest.TestCase):
    """The digits, by kserve."""

    @classmethod
    def setUpClass(cls):
        cls.served = Served("examples/digits/app.toml")

    @classmethod
    def tearDownClass(cls):
        cls.served.stop()

    def request(self):
        image = np.linspace(0, 1, 64, dtype=np.float32).reshape(1, 8, 8)
        tensor = InferInput("image", list(image.shape), "FP32")
        tensor.set_data_from_numpy(image, binary_data=False)
        return InferRequest("digits", infer_inputs=[tensor], parameters={"timeout": 60_000_000})

    def test_rest_and_grpc_agree(self):
        async def both():
            rest = InferenceRESTClient(config=RESTConfig(protocol="v2"))
            base = f"http://{self.served.address}"
            self.assertTrue(await rest.is_server_ready(base))
            self.assertTrue(await rest.is_model_ready(base, "digits"))
            one = await rest.infer(base, self.request(), model_name="digits")
            grpc = InferenceGRPCClient(self.served.address)
            self.assertTrue(await grpc.is_server_ready())
            other = await grpc.infer(self.request())
            await grpc.close()
            return one, other

        one, other = asyncio.run(both())
        np.testing.assert_allclose(one.outputs[0].as_numpy(), other.outputs[0].as_numpy(), rtol=1e-6)
        self.assertEqual(one.model_name, "digits")


if __name__ == "__main__":
    unittest.main(verbosity=2)

import importlib.util
import unittest

import numpy as np

import kaskade

from .deployment import needs_kaskade
from .example import walk

needs_torch = unittest.skipUnless(importlib.util.find_spec("torch"), "torch is not installed")


@needs_torch
class Tensors(unittest.TestCase):
    def test_a_function_takes_and_returns_torch_tensors(self) -> None:
        import torch

        @kaskade.stage("app", "double", tensors="torch", output="y")
        def double(x: torch.Tensor) -> torch.Tensor:
            self.assertIsInstance(x, torch.Tensor)
            return (2 * x).requires_grad_()

        answers = double.run_batch([{"x": np.array([1.0, 2.0], np.float32)}] * 2)
        self.assertEqual([answer.outputs["y"].tolist() for answer in answers], [[2.0, 4.0]] * 2)

    def test_bfloat16_becomes_float32(self) -> None:
        import torch

        array = kaskade.tensors.as_array(torch.tensor([1.5], dtype=torch.bfloat16))
        self.assertEqual((array.dtype, array.tolist()), (np.float32, [1.5]))


@needs_torch
@needs_kaskade
class Example(unittest.TestCase):
    def test_a_profiled_stage_in_pytorch_is_planned_and_served(self) -> None:
        walk(self, "torch_stage.py", "network", train=True)

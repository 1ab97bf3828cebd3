import unittest

from .deployment import needs_kaskade
from .example import walk


@needs_kaskade
class Example(unittest.TestCase):
    def test_a_profiled_stage_in_numpy_is_planned_and_served(self) -> None:
        walk(self, "neighbours.py", "neighbours")

import random
import unittest

import numpy as np

from kaskade import Typed, tensors
from kaskade.errors import Malformed


def random_array(draw: random.Random) -> np.ndarray:
    datatype = draw.choice(sorted(tensors._DTYPES) + ["BYTES"])
    shape = tuple(draw.randint(0, 4) for _ in range(draw.randint(0, 4)))
    size = int(np.prod(shape))
    if datatype == "BYTES":
        texts = np.empty(size, dtype=object)
        texts[:] = [draw.randbytes(draw.randint(0, 9)) for _ in range(size)]
        return texts.reshape(shape)
    dtype = tensors._DTYPES[datatype]
    if datatype == "BOOL":
        return np.array([draw.random() < 0.5 for _ in range(size)], dtype=bool).reshape(shape)
    return np.frombuffer(draw.randbytes(size * dtype.itemsize), dtype=dtype).reshape(shape)


class RoundTrips(unittest.TestCase):
    def test_any_array_comes_back(self) -> None:
        draw = random.Random(7)
        for _ in range(2000):
            array = random_array(draw)
            name, back = tensors.decode(tensors.encode("x", array))
            self.assertEqual(name, "x")
            self.assertEqual(back.shape, array.shape)
            self.assertEqual(back.dtype, array.dtype)
            self.assertEqual(tensors.to_bytes(back, tensors.datatype_of(back)), tensors.to_bytes(array, tensors.datatype_of(array)))

    def test_memory_order_does_not_matter(self) -> None:
        array = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
        for view in (array.T, array[:, ::2], np.asfortranarray(array), array.astype(">f4")):
            np.testing.assert_array_equal(tensors.decode(tensors.encode("x", view))[1], view)

    def test_decoding_copies_nothing(self) -> None:
        data = np.arange(8, dtype="<f4").tobytes()
        _, array = tensors.decode({"name": "x", "shape": [2, 4], "datatype": "FP32", "data": data})
        self.assertIs(array.base.base, data)

    def test_python_values_have_datatypes(self) -> None:
        for value, datatype, shape in [
            (1.5, "FP32", []), ([1, 2], "INT64", [2]), ([[1.0], [2.0]], "FP32", [2, 1]), ("text", "BYTES", [1]),
            (["a", b"b\0"], "BYTES", [2]), (True, "BOOL", []), (np.float64(1), "FP64", []),
        ]:
            tensor = tensors.encode("x", value)
            self.assertEqual((tensor["datatype"], tensor["shape"]), (datatype, shape), value)
        self.assertEqual(list(tensors.decode(tensors.encode("x", ["a", b"b\0"]))[1]), [b"a", b"b\0"])

    def test_arrays_of_any_library_keep_their_type(self) -> None:
        class Column:
            """An array of another library, such as JAX or pandas."""

            def __init__(self, dtype: str) -> None:
                self.dtype = np.dtype(dtype)

            def __array__(self, dtype: object = None, copy: object = None) -> np.ndarray:
                return np.array([1.0, 1e300 if self.dtype == np.float64 else 2.0], self.dtype)

        rows = [np.array([1.0, 1e300]), np.array([2.0, 3.0])]
        for value, datatype in [
            (Column("f8"), "FP64"), (Column("f4"), "FP32"), (rows, "FP64"), ([rows], "FP64"), ((rows[0],), "FP64"),
            ([row.astype(np.float32) for row in rows[1:]], "FP32"), ([np.float64(1.0)], "FP32"), ([[1.0]], "FP32"), ([], "FP32"),
        ]:
            self.assertEqual(tensors.encode("x", value)["datatype"], datatype, value)

    def test_integers_do_not_become_floats(self) -> None:
        for value, datatype in [([-1, 2**63 - 1], "INT64"), ([2**63], "UINT64"), ([-1.0, 2.0**63], "FP32")]:
            self.assertEqual(tensors.encode("x", value)["datatype"], datatype)
        for value in ([-1, 2**63], [[-1], [2**64 - 1]]):
            with self.assertRaisesRegex(Malformed, "integers"):
                tensors.encode("x", value)

    def test_bfloat16_is_rounded_to_the_nearest(self) -> None:
        values = np.array([0.0, -1.5, 3.14159, 1e38, np.inf, np.nan, 1.00390625], np.float32)
        tensor = tensors.encode("x", Typed(values, "BF16"))
        self.assertEqual((tensor["datatype"], len(tensor["data"])), ("BF16", 14))
        _, back = tensors.decode(tensor)
        np.testing.assert_allclose(back, values, rtol=1 / 256)
        self.assertEqual(back[6], 1.0, "ties go to even")

    def test_arrays_of_numbers_are_read(self) -> None:
        for datatype, data, shape in [
            ("FP32", [[1, 2.5], [3, 4]], [2, 2]), ("INT64", [1, 2], [2]), ("BYTES", ["a", "b"], [2]), ("BOOL", [True], [1]),
        ]:
            _, array = tensors.decode({"name": "x", "shape": shape, "datatype": datatype, "data": data})
            self.assertEqual(list(array.shape), shape)


class Refusals(unittest.TestCase):
    def test_invalid_tensors_are_refused(self) -> None:
        good = {"name": "x", "shape": [2], "datatype": "FP32", "data": bytes(8)}
        tensors.decode(good)
        for change in [
            {"shape": [3]}, {"shape": [-1]}, {"shape": [2.0]}, {"shape": "2"}, {"shape": [1] * 17}, {"datatype": "FP8"},
            {"datatype": None}, {"data": 7}, {"data": ["a", "b"]}, {"name": 1}, {"shape": [2**40, 2**40]},
            {"datatype": "BYTES", "data": bytes(3)}, {"datatype": "BYTES", "data": b"\xff\xff\xff\xff" + bytes(4)},
            {"datatype": "BYTES", "data": bytes(9)}, {"datatype": "BYTES", "shape": [2**40], "data": bytes(8)},
        ]:
            with self.assertRaises(Malformed, msg=str(change)):
                tensors.decode({**good, **change})
        with self.assertRaises(Malformed):
            tensors.decode_all([good, good])
        with self.assertRaises(Malformed):
            tensors.decode_all([{**good, "name": str(index)} for index in range(65)])

    def test_random_bytes_never_end_in_another_error(self) -> None:
        draw = random.Random(11)
        for _ in range(3000):
            tensor = {"name": "x", "shape": [draw.randint(0, 3) for _ in range(draw.randint(0, 2))],
                      "datatype": draw.choice(sorted(tensors.DATATYPES)), "data": draw.randbytes(draw.randint(0, 24))}
            try:
                tensors.decode(tensor)
            except Malformed:
                pass

    def test_numbers_beyond_a_type_are_refused(self) -> None:
        # They became infinities.
        double = np.array([1.0, 1e39])
        for value in (1e39, [0.5, -1e39], Typed(double, "FP32"), Typed(1e39, "BF16"), Typed(3.4e38, "BF16"), Typed(1e5, "FP16"), Typed(10**5, "FP16")):
            with self.assertRaisesRegex(Malformed, "is beyond the range of (FP32|BF16|FP16).*FP64"):
                tensors.encode("x", value)
        with self.assertRaisesRegex(Malformed, "1e\\+39 is beyond the range of FP32"):
            tensors.as_array([1e39])

    def test_infinities_and_doubles_are_kept(self) -> None:
        for value, expected in [
            (float("inf"), np.inf), (3.4e38, np.float32(3.4e38)), (Typed(1e300, "FP64"), 1e300), (Typed(0.1, "FP64"), 0.1),
            (np.float64(1e300), 1e300), (Typed(float("-inf"), "BF16"), -np.inf), (Typed(0.1, "FP16"), np.float16(0.1)),
        ]:
            self.assertEqual(tensors.decode(tensors.encode("x", value))[1], expected, value)
        self.assertTrue(np.isnan(tensors.decode(tensors.encode("x", float("nan")))[1]))

    def test_types_without_datatype_are_refused(self) -> None:
        for value in (np.array([1j]), np.array([object()]), np.array(["2026"], dtype="datetime64[Y]")):
            with self.assertRaises(Malformed):
                tensors.encode("x", value)

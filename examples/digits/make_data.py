#!/usr/bin/env python3
"""Write the UCI optical digits that scikit-learn ships as one pair of IDX files, in a fixed shuffled order.

    python3 examples/digits/make_data.py            # needs scikit-learn; writes examples/digits/data

The shuffle is part of the data: readers split the files in file order (see DATA.md), so that no program has to repeat
a random generator to get the same split.
"""

import pathlib
import struct

import numpy
from sklearn.datasets import load_digits

SEED = 0

digits = load_digits()
images = digits.images.astype(numpy.uint8)
labels = digits.target.astype(numpy.uint8)
assert images.shape == (1797, 8, 8) and images.max() == 16
assert (images == digits.images).all(), "an intensity is not a whole number"

# RandomState, not default_rng: numpy keeps its stream frozen.
order = numpy.random.RandomState(SEED).permutation(len(images))

data = pathlib.Path(__file__).parent / "data"
data.mkdir(exist_ok=True)
for name, array in (("images.idx3-ubyte", images[order]), ("labels.idx1-ubyte", labels[order])):
    header = struct.pack(">BBBB", 0, 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
    (data / name).write_bytes(header + array.tobytes())
    print(f"{data / name}: {array.shape}")

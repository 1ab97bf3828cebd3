"""A stage in Python with numpy: the ten nearest neighbours of a handwritten digit, as the large model of a cascade.

    python neighbours.py profile PROFILE OUT      # measures the stage and adds it to a profile
    python neighbours.py place PLAN               # moves the stage's replica in a plan to this process
    python neighbours.py serve [NATS_URL [ID]]    # serves it until SIGTERM, by default as the plan's replica

README.md has the whole walk.
"""

import sys

import numpy as np

import kaskade
from digits import TRAINED_ON, digits, run

NEIGHBOURS = 10

IMAGES, LABELS = digits(TRAINED_ON)
KNOWN = IMAGES.reshape(len(IMAGES), -1)


@kaskade.stage("digits", "neighbours", max_batch=32, inputs={"image": kaskade.Input("FP32", (1, 8, 8))})
def neighbours(image):
    """Logits of shape [batch, 10]: the logarithm of the neighbours' votes, weighted by their distance."""
    flat = image.reshape(len(image), -1)
    squared = (flat**2).sum(1)[:, None] - 2 * flat @ KNOWN.T + (KNOWN**2).sum(1)
    nearest = np.argpartition(squared, NEIGHBOURS, axis=1)[:, :NEIGHBOURS]
    weights = np.exp(-np.take_along_axis(squared, nearest, axis=1))
    votes = np.full((len(image), 10), 1e-3, np.float32)
    for row, (classes, weight) in enumerate(zip(LABELS[nearest], weights)):
        np.add.at(votes[row], classes, weight)
    return np.log(votes)


if __name__ == "__main__":
    if len(sys.argv) < 2 or not run(neighbours, "neighbours", KNOWN.size, *sys.argv[1:]):
        sys.exit(__doc__)

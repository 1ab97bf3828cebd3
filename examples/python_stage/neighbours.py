"""A stage in Python with numpy: the ten nearest neighbours of a handwritten digit, as the large model of a cascade.

    python neighbours.py profile PROFILE OUT      # measures the stage and adds it to a profile
    python neighbours.py place PLAN               # moves the stage's replica in a plan to this process
    python neighbours.py serve [NATS_URL]         # serves it until SIGTERM

README.md has the whole walk.
"""

import pathlib
import sys

import numpy as np

import kaskade

DATA = pathlib.Path(__file__).resolve().parent.parent / "digits" / "data"
# The images are shuffled; the digit models were trained on the first 797, too.
TRAINED_ON, VALIDATION = slice(0, 797), slice(797, 1297)
NEIGHBOURS = 10
REPLICA = "neighbours-0"


def digits(part):
    """Images of shape [1, 8, 8] in [0, 1], and their labels."""
    images = np.frombuffer((DATA / "images.idx3-ubyte").read_bytes(), np.uint8, offset=16).reshape(-1, 1, 8, 8)
    labels = np.frombuffer((DATA / "labels.idx1-ubyte").read_bytes(), np.uint8, offset=8)
    return images[part].astype(np.float32) / 16, labels[part].astype(np.int64)


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


def main(command, *arguments):
    if command == "profile":
        family, out = arguments
        images, labels = digits(VALIDATION)
        measured = kaskade.profile(neighbours, [{"image": image} for image in images], labels, parameters=KNOWN.size)
        profile = kaskade.Profile.load(family)
        # The smallest model of the family and this one make the cascade.
        profile.variants = profile.variants[:1]
        profile.add(measured).save(out)
        print(f"{measured.accuracy:.1%} of {len(labels)} digits are right; written to {out}")
    elif command == "place":
        kaskade.place(arguments[0], "neighbours")
    elif command == "serve":
        neighbours.serve(*arguments[:1], replica=REPLICA)
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main(*sys.argv[1:]) if len(sys.argv) > 1 else sys.exit(__doc__)

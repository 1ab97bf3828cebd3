"""What the stages of this example share: the images, and the commands that profile, place and serve a stage."""

import pathlib

import numpy as np

import kaskade

DATA = pathlib.Path(__file__).resolve().parent.parent / "digits" / "data"
# The images are shuffled; the digit models were trained on the first 797, too.
TRAINED_ON, VALIDATION = slice(0, 797), slice(797, 1297)


def digits(part):
    """Images of shape [1, 8, 8] in [0, 1], and their labels."""
    images = np.frombuffer((DATA / "images.idx3-ubyte").read_bytes(), np.uint8, offset=16).reshape(-1, 1, 8, 8)
    labels = np.frombuffer((DATA / "labels.idx1-ubyte").read_bytes(), np.uint8, offset=8)
    return images[part].astype(np.float32) / 16, labels[part].astype(np.int64)


def run(stage, variant, parameters, command, *arguments):
    """Runs a command for the stage of a variant. Returns False if there is no such command."""
    if command == "profile":
        family, out = arguments
        images, labels = digits(VALIDATION)
        measured = kaskade.profile(stage, [{"image": image} for image in images], labels, parameters=parameters)
        profile = kaskade.Profile.load(family)
        # The smallest model of the family and this one make the cascade.
        profile.variants = profile.variants[:1]
        profile.add(measured).save(out)
        print(f"{measured.accuracy:.1%} of {len(labels)} digits are right; written to {out}")
    elif command == "place":
        kaskade.place(arguments[0], variant)
    elif command == "serve":
        broker, replica = (*arguments, *("", f"{variant}-0")[len(arguments) :])
        stage.serve(broker, replica=replica)
    else:
        return False
    return True

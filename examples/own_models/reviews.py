"""Writes labelled sentences about films: a stand-in for the labelled samples of your own traffic.

    python3 reviews.py FOLDER

makes FOLDER/validation.tsv (1,500 lines) and FOLDER/test.tsv (500 lines): a sentence, a tab, and 0 (negative) or 1 (positive). Sentences
are put together from lists, always the same ones; none is in both files.
"""

import itertools
import random
import sys
from pathlib import Path

GOOD = """warm funny moving clever charming gripping beautiful honest tender witty fresh brilliant delightful touching
powerful thoughtful wonderful elegant""".split()
BAD = """dull tedious clumsy predictable shallow boring lifeless messy annoying bland stale pointless awful flat
tiresome hollow forgettable painful""".split()
THINGS = """film movie comedy drama story thriller picture script performance romance documentary sequel""".split()


PLAIN = ["a {} and {} {}", "the {2} is {0} and {1}", "a {2} as {0} as it is {1}"]
MIXED = ["a {2} that is {0} , yet {1}", "the {2} is {0} but {1}", "{0} at first , {1} in the end : a {2}"]


def sentences():
    for template, thing in itertools.product(PLAIN, THINGS):
        for label, words in enumerate((BAD, GOOD)):
            for a, b in itertools.combinations(words, 2):
                yield template.format(a, b, thing), label
    # Harder: the second half decides.
    for template, thing, bad, good in itertools.product(MIXED, THINGS[:2], BAD, GOOD):
        yield template.format(bad, good, thing), 1
        yield template.format(good, bad, thing), 0


def main(folder):
    chosen = random.Random(7).sample(sorted(set(sentences())), 2000)
    folder.mkdir(parents=True, exist_ok=True)
    for name, lines in ("validation.tsv", chosen[:1500]), ("test.tsv", chosen[1500:]):
        (folder / name).write_text("".join(f"{text}\t{label}\n" for text, label in lines))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))

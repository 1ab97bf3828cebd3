"""The stage `large` of the tests: python stage_process.py URL REPLICA SECONDS [GRACE]."""

import sys
import time

import numpy as np

import kaskade

url, replica, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])


@kaskade.stage("digits", "large", max_batch=8)
def large(image: np.ndarray) -> np.ndarray:
    print("batch", flush=True)
    time.sleep(seconds)
    logits = np.zeros((len(image), 10))
    # The answer names the request, so that a test notices a mix-up.
    logits[:, 0] = image.sum(axis=(1, 2, 3))
    return logits


large.serve(url, replica=replica, grace=float((sys.argv[4:] or ["10"])[0]))

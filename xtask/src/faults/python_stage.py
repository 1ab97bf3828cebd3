"""The large model of the fault suite as a Python stage: python python_stage.py URL APP STAGE REPLICA SECONDS.

Prints the size of each batch when it begins, and 0 when it ends.
"""

import sys
import time

import numpy as np

import kaskade

url, app, name, replica, seconds = sys.argv[1:]


@kaskade.stage(app, name, max_batch=8)
def large(x: np.ndarray) -> np.ndarray:
    print(len(x), flush=True)
    time.sleep(float(seconds))
    print(0, flush=True)
    return np.eye(4, dtype=np.float32)[x[:, 0].astype(int)] * 9


large.serve(url, replica=replica)

"""A stage in PyTorch: a small convolutional network for handwritten digits, as the large model of a cascade.

    python torch_stage.py train                   # trains for about ten seconds on the CPU, and writes digits.pt
    python torch_stage.py profile PROFILE OUT     # measures the stage and adds it to a profile
    python torch_stage.py place PLAN              # moves the stage's replica in a plan to this process
    python torch_stage.py serve [NATS_URL [ID]]   # serves it until SIGTERM, by default as the plan's replica
"""

import pathlib
import sys

import torch
from torch import nn

import kaskade
from digits import TRAINED_ON, digits, run

WEIGHTS = pathlib.Path("digits.pt")
# A network this small runs fastest on one thread.
torch.set_num_threads(1)
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


network = nn.Sequential(
    nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
    nn.Flatten(), nn.Dropout(0.3), nn.Linear(64 * 16, 64), nn.ReLU(), nn.Linear(64, 10),
).to(DEVICE)


@kaskade.stage("digits", "network", tensors="torch", max_batch=32, inputs={"image": kaskade.Input("FP32", (1, 8, 8))})
@torch.inference_mode()
def stage(image):
    """Logits of shape [batch, 10]."""
    return network(image.to(DEVICE))


def train():
    torch.manual_seed(0)
    images, labels = (torch.from_numpy(array).to(DEVICE) for array in digits(TRAINED_ON))
    optimiser = torch.optim.AdamW(network.parameters(), 2e-3)
    network.train()
    for _ in range(40):
        for rows in torch.randperm(len(images)).split(64):
            # Shifts by at most a pixel make more images of the same digits.
            down, right = (int(torch.randint(-1, 2, ())) for _ in range(2))
            shifted = torch.roll(images[rows], (down, right), (2, 3))
            loss = nn.functional.cross_entropy(network(shifted), labels[rows])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    torch.save(network.state_dict(), WEIGHTS)


def main(command, *arguments):
    if command == "train":
        return train()
    if command != "place":
        network.load_state_dict(torch.load(WEIGHTS, map_location=DEVICE))
        network.eval()
    parameters = sum(weights.numel() for weights in network.parameters())
    return run(stage, "network", parameters, command, *arguments) or sys.exit(__doc__)


if __name__ == "__main__":
    main(*sys.argv[1:]) if len(sys.argv) > 1 else sys.exit(__doc__)

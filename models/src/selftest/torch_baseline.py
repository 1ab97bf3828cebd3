"""Times BERT and ViT in torch for the self-test. Reads JSON lines, first the device and then one per measurement, and
answers each with one line.

Uses the modules of transformers if it is installed, because most servers use them, else plain modules of the same sizes.
Times inputs in host memory to logits in host memory, like the self-test, in the type that a measurement names.
"""

import json
import statistics
import sys
import time

TYPES = {"f32": "float32", "bf16": "bfloat16", "f16": "float16"}
LABELS = {"bert": 2, "vit": 1000}
VOCABULARY, CONTEXT, PATCH = 30522, 512, 16


def say(**line):
    print(json.dumps(line), flush=True)


def transformers_network(point):
    import transformers as t

    sizes = dict(
        hidden_size=point["width"],
        num_hidden_layers=point["blocks"],
        num_attention_heads=point["heads"],
        intermediate_size=point["inner"],
        num_labels=LABELS[point["family"]],
    )
    if point["family"] == "bert":
        network = t.BertForSequenceClassification(t.BertConfig(**sizes))
        return network, lambda ids: network(input_ids=ids).logits
    network = t.ViTForImageClassification(t.ViTConfig(image_size=point["extent"], patch_size=PATCH, **sizes))
    return network, lambda pixels: network(pixel_values=pixels).logits


def plain_network(point):
    import torch
    from torch import nn

    width, vit = point["width"], point["family"] == "vit"

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.projections = nn.Linear(width, 3 * width)
            self.output = nn.Linear(width, width)
            self.up = nn.Linear(width, point["inner"])
            self.down = nn.Linear(point["inner"], width)
            self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)

        def attend(self, x):
            batch, tokens, _ = x.shape
            parts = self.projections(x).view(batch, tokens, 3, point["heads"], -1).permute(2, 0, 3, 1, 4)
            mixed = nn.functional.scaled_dot_product_attention(*parts)
            return self.output(mixed.transpose(1, 2).reshape(batch, tokens, width))

        def feed(self, x):
            return self.down(nn.functional.gelu(self.up(x)))

        def forward(self, x):
            if vit:
                x = x + self.attend(self.first(x))
                return x + self.feed(self.second(x))
            x = self.first(x + self.attend(x))
            return self.second(x + self.feed(x))

    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            tokens = (point["extent"] // PATCH) ** 2 + 1 if vit else CONTEXT
            self.embed = nn.Conv2d(3, width, PATCH, PATCH) if vit else nn.Embedding(VOCABULARY, width)
            self.token = nn.Parameter(torch.randn(1, 1, width))
            self.positions = nn.Parameter(torch.randn(1, tokens, width))
            self.norm = nn.LayerNorm(width)
            self.blocks = nn.Sequential(*[Block() for _ in range(point["blocks"])])
            self.pool = nn.Linear(width, width)
            self.classify = nn.Linear(width, LABELS[point["family"]])

        def forward(self, x):
            x = self.embed(x)
            if vit:
                x = torch.cat([self.token.expand(x.shape[0], -1, -1), x.flatten(2).transpose(1, 2)], 1) + self.positions
                return self.classify(self.norm(self.blocks(x))[:, 0])
            x = self.norm(x + self.token + self.positions[:, : x.shape[1]])
            return self.classify(torch.tanh(self.pool(self.blocks(x)[:, 0])))

    network = Network()
    return network, network


def median_of(forward, inputs, device, budget):
    def run():
        began = time.perf_counter()
        forward(inputs.to(device)).float().cpu()
        return time.perf_counter() - began

    for _ in range(1 if device == "cpu" else 3):
        run()
    seconds, started = [], time.perf_counter()
    while not seconds or (time.perf_counter() - started < budget and len(seconds) < 10000):
        seconds.append(run())
    return statistics.median(seconds)


def best_of(forward, inputs, device, budget, cores):
    """Returns the better of all cores and one: under other load torch's threads wait for each other, and one is many
    times faster. On a GPU the threads do not matter."""
    import torch

    figures = []
    for threads in {cores, 1} if device == "cpu" else {cores}:
        torch.set_num_threads(threads)
        figures.append((median_of(forward, inputs, device, budget), threads))
    return min(figures)


def main():
    opening = json.loads(sys.stdin.readline())
    device = opening["device"]
    try:
        import torch
    except ImportError as error:
        return say(absent=f"{sys.executable}: {error}")
    if device != "cpu" and not torch.cuda.is_available():
        return say(absent=f"torch {torch.__version__} sees no CUDA device")
    try:
        import transformers

        build, modules = transformers_network, f"transformers {transformers.__version__}"
    except ImportError:
        build, modules = plain_network, "plain"
    # The self-test's kernels may use TF32 on a GPU, so torch may, too.
    torch.set_float32_matmul_precision("highest" if device == "cpu" else "high")
    report = dict(torch=torch.__version__, modules=modules, device=device)
    cores = torch.get_num_threads()
    say(report=dict(report, precision=torch.get_float32_matmul_precision()))

    key, network, forward = None, None, None
    for line in sys.stdin:
        try:
            point = json.loads(line)
            shape = {name: value for name, value in point.items() if name != "batch"}
            if shape != key:
                network, forward = build(point)
                if point["dtype"] not in TYPES:
                    raise ValueError(f"torch has no {point['dtype']}")
                dtype = getattr(torch, TYPES[point["dtype"]])
                network.eval().to(device, dtype)
                key = shape
            side, batch = point["extent"], point["batch"]
            if point["family"] == "bert":
                inputs = torch.randint(0, VOCABULARY, (batch, side))
            else:
                inputs = torch.rand(batch, 3, side, side, dtype=dtype)
            with torch.inference_mode():
                seconds, threads = best_of(forward, inputs, device, opening["budget_s"], cores)
            say(figure=dict(median_s=seconds, threads=threads))
        except Exception as error:
            key = None
            say(error=f"{type(error).__name__}: {error}")


main()

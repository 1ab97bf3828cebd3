"""Compares models on the CPU with onnxruntime, torch and CTranslate2, interleaved in one run.

    python3 -m venv venv && . venv/bin/activate
    pip install torch --index-url https://download.pytorch.org/whl/cpu   # or: pip install torch
    pip install transformers onnx onnxruntime ctranslate2
    python3 scripts/bench-models.py [--rounds 5] [--threads 2] [--only encoders,vit,resnet,convnext,swin,decode,prefill,types,loading]
    python3 scripts/bench-models.py --only selftest [--device cuda] [--dtype bf16]

All checkpoints are random, of stated sizes, and made in a temporary folder by transformers:

    encoders   BERTs of 6 layers, 384 wide, and of 12 layers, 768 wide; texts of 20 to 120 tokens, tokenising included, at
               batch sizes 1, 8 and 32; onnxruntime and torch pad batches to their longest text
    vit, resnet, convnext, swin
               ViT-Base, ResNet-50, ConvNeXt-T and Swin-T, images of 224 x 224: beside onnxruntime
    decode     a GPT-2 of 124 million weights, greedy behind 32 tokens, batch sizes 1 and 8: beside CTranslate2
    prefill    a prompt of 1,000 tokens by the same model: beside torch
    types      the same model in bf16, f16, q8_0 and q4_0 beside f32 at batch size 1 and 8 and for the prompt, and each beside a
               plain read of memory
    selftest   the networks of `kaskade selftest`, on the CPU or a GPU, batch sizes 1, 8 and 32: beside the same networks of
               transformers on torch, from host memory to host memory; not among those that run by default
    loading    the same model in f32 from a file in the cache: beside reading the file; needs numpy and safetensors only

Every round measures each program once, in turn after a pause, so that other load affects all. A ratio above 1 means that Kaskade is
faster. Prints medians, and the range of the rounds' ratios.
"""

import argparse
import functools
import json
import os
import random
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

IMAGES = ("vit", "resnet", "convnext", "swin")
WORDS = 30_000
LONGEST = 120
# Seconds before every measurement. A thread of onnxruntime spins for 20 to 25 ms of processor time after a run, which the
# program measured next would lose from one of its cores.
PAUSE = 0.2


def built(bench):
    """A benchmark's program, as cargo names it after building it."""
    command = ["cargo", "bench", "--no-run", "-p", "kaskade-models", "--bench", bench, "--message-format", "json"]
    messages = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
    return [path for path in (json.loads(line).get("executable") for line in messages) if path][-1]


class Ours:
    """A benchmark's program that answers one line of JSON with another."""

    def __init__(self, bench, arguments, threads):
        environment = {**os.environ, "RAYON_NUM_THREADS": str(threads), "CORES": str(threads)}
        self.process = subprocess.Popen(
            [built(bench), *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def ask(self, **question):
        self.process.stdin.write(json.dumps(question) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError("the benchmark ended; its message is above")
        return json.loads(line)

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def compare(name, rounds, measure, other_name, other):
    """Runs both measurements, in units per second, in turn and prints their ratio."""
    def rested(run):
        time.sleep(PAUSE)
        return run()

    measure(), other()
    figures = [(rested(measure), rested(other)) for _ in range(rounds)]
    mine, theirs = (statistics.median(side) for side in zip(*figures))
    ratios = sorted(own / their for own, their in figures)
    print(
        f"{name}: kaskade {mine:.2f}/s, {other_name} {theirs:.2f}/s, ratio {mine / theirs:.2f} "
        f"(rounds {ratios[0]:.2f} to {ratios[-1]:.2f})",
        flush=True,
    )


def tokenizer(folder, size=WORDS):
    """A tokenizer of whole words with BERT's special tokens, in the folder of a checkpoint."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"] + [f"w{index}" for index in range(size - 5)]
    words = Tokenizer(models.WordLevel({name: index for index, name in enumerate(names)}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"
    )
    fast.save_pretrained(folder)
    return fast


def exported(model, inputs, names, axes, path):
    import torch

    torch.onnx.export(
        model, inputs, str(path), input_names=names, output_names=["logits"], dynamic_axes=axes, opset_version=17, dynamo=False
    )


def onnx_session(path, threads):
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def encoders(folder, rounds, threads):
    import torch
    from transformers import BertConfig, BertForSequenceClassification

    rng = random.Random(1)
    texts = [" ".join(f"w{rng.randrange(WORDS - 5)}" for _ in range(rng.randint(18, LONGEST - 2))) for _ in range(64)]
    file = folder / "texts.txt"
    file.write_text("\n".join(texts) + "\n")
    for layers, width in ((6, 384), (12, 768)):
        place = folder / f"bert-{layers}x{width}"
        config = BertConfig(
            vocab_size=WORDS, hidden_size=width, num_hidden_layers=layers, num_attention_heads=width // 64,
            intermediate_size=4 * width, num_labels=10,
        )
        model = BertForSequenceClassification(config).eval()
        model.save_pretrained(place)
        words = tokenizer(place)
        sample = words(texts[:2], padding=True, return_tensors="pt")
        inputs = (sample["input_ids"], sample["attention_mask"])
        axes = {name: {0: "batch", 1: "length"} for name in ("input_ids", "attention_mask")}
        exported(model, inputs, ["input_ids", "attention_mask"], axes, place / "model.onnx")
        session = onnx_session(place / "model.onnx", threads)
        ours = Ours("directory", [str(place)], threads)

        def padded(batch, run):
            """Texts per second of a program that pads batches."""
            began = time.perf_counter()
            for first in range(0, len(texts), batch):
                run(words(texts[first : first + batch], padding=True, return_tensors="pt"))
            return len(texts) / (time.perf_counter() - began)

        def by_onnx(batch):
            return padded(batch, lambda fed: session.run(None, {name: fed[name].numpy() for name in axes}))

        def by_torch(batch):
            def run(fed):
                with torch.inference_mode():
                    model(input_ids=fed["input_ids"], attention_mask=fed["attention_mask"])

            return padded(batch, run)

        def by_us(batch):
            return ours.ask(texts=str(file), batch=batch)["items_per_s"]

        best = max((1, 8, 32), key=by_onnx)
        title = f"bert-{layers}x{width}"
        for batch in (1, 8, 32):
            compare(f"{title} batch {batch}", rounds, lambda: by_us(batch), f"onnxruntime at its best batch, {best},", lambda: by_onnx(best))
        compare(f"{title} batch 32", rounds, lambda: by_us(32), "torch at batch 8", lambda: by_torch(8))
        compare(f"{title} batch 32 beside batch 1 (aim: at least 1)", rounds, lambda: by_us(32), "kaskade at batch 1", lambda: by_us(1))
        ours.close()


def images(folder, rounds, threads, name):
    import torch
    import transformers

    family, title = {
        "vit": ("ViT", "vit-base"),
        "resnet": ("ResNet", "resnet-50"),
        "convnext": ("ConvNext", "convnext-tiny"),
        "swin": ("Swin", "swin-tiny"),
    }[name]
    place = folder / title
    config = getattr(transformers, f"{family}Config")(num_labels=1000)
    model = getattr(transformers, f"{family}ForImageClassification")(config).eval()
    model.save_pretrained(place)
    image = torch.rand(1, 3, 224, 224)
    exported(model, (image,), ["pixel_values"], {"pixel_values": {0: "batch"}}, place / "model.onnx")
    session = onnx_session(place / "model.onnx", threads)
    ours = Ours("directory", [str(place)], threads)
    for batch in (1, 4):
        pixels = torch.rand(batch, 3, 224, 224).numpy()

        def by_onnx():
            began = time.perf_counter()
            session.run(None, {"pixel_values": pixels})
            return batch / (time.perf_counter() - began)

        compare(
            f"{title} batch {batch}", rounds,
            lambda: ours.ask(pixels=224, items=2 * batch, batch=batch)["items_per_s"], "onnxruntime", by_onnx,
        )
    ours.close()


def decode(folder, rounds, threads):
    import ctranslate2
    from transformers import GPT2Config, GPT2LMHeadModel

    place = folder / "gpt2"
    GPT2LMHeadModel(GPT2Config()).save_pretrained(place)
    tokenizer(place, 50_257)
    converted = folder / "gpt2-ct2"
    ctranslate2.converters.TransformersConverter(str(place)).convert(str(converted), force=True)
    # A checkpoint without a tokenizer has no names for its special tokens, and CTranslate2 takes no null.
    described = converted / "config.json"
    named = {key: value or "<|endoftext|>" if key.endswith("_token") else value for key, value in json.loads(described.read_text()).items()}
    described.write_text(json.dumps(named))
    generator = ctranslate2.Generator(str(converted), device="cpu", compute_type="float32", intra_threads=threads)
    ours, tokens = Ours("decode", ["f32"], threads), 48
    rng = random.Random(1)
    for batch in (1, 8):
        prompts = [[f"w{rng.randrange(50_000)}" for _ in range(32)] for _ in range(batch)]

        def by_ctranslate2():
            def seconds(count):
                began = time.perf_counter()
                generator.generate_batch(prompts, max_length=count, min_length=count, sampling_topk=1, include_prompt_in_result=False)
                return time.perf_counter() - began

            # The difference of two lengths leaves the steps without the prompt.
            short = seconds(8)
            return (tokens - 8) * batch / (seconds(tokens) - short)

        def by_us():
            return batch / ours.ask(batch=batch, prompt=32, tokens=tokens)["step_s"]

        compare(f"gpt2-124m f32 decode batch {batch}", rounds, by_us, "ctranslate2 f32", by_ctranslate2)
    ours.close()


def prefill(folder, rounds, threads):
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.set_num_threads(threads)
    model = GPT2LMHeadModel(GPT2Config()).eval()
    ours = Ours("decode", ["f32"], threads)

    def by_torch():
        with torch.inference_mode():
            began = time.perf_counter()
            model(torch.randint(0, 50_257, (1, 1000)), use_cache=True, logits_to_keep=1)
            return 1000 / (time.perf_counter() - began)

    compare(
        "gpt2-124m f32 prompt of 1,000 tokens", rounds,
        lambda: 1000 / ours.ask(batch=1, prompt=1000, tokens=1)["prompt_s"], "torch", by_torch,
    )
    ours.close()


def types(_folder, rounds, threads):
    programs = {name: Ours("decode", [name], threads) for name in ("f32", "bf16", "f16", "q8_0", "q4_0")}
    aims = {"bf16": "1.7", "q8_0": "2.5"}

    def by(name, batch):
        return lambda: batch / programs[name].ask(batch=batch, prompt=32, tokens=48)["step_s"]

    def prompt(name):
        return lambda: 1000 / programs[name].ask(batch=1, prompt=1000, tokens=1)["prompt_s"]

    for name in ("bf16", "f16", "q8_0", "q4_0"):
        aim = aims.get(name, "none")
        compare(f"gpt2-124m {name} decode batch 1 (aim: {aim})", rounds, by(name, 1), "kaskade f32", by("f32", 1))
        compare(f"gpt2-124m {name} decode batch 8", rounds, by(name, 8), "kaskade f32", by("f32", 8))
        compare(f"gpt2-124m {name} prompt of 1,000 tokens", rounds, prompt(name), "kaskade f32", prompt("f32"))
    for name, program in programs.items():
        answers = [(program.ask(batch=1, prompt=32, tokens=48), program.ask(read=True)) for _ in range(rounds)]
        shares = [step["step_bytes"] / step["step_s"] / read["bytes_per_s"] for step, read in answers]
        print(f"gpt2-124m {name}: reads its weights at {statistics.median(shares):.0%} of a plain read of memory", flush=True)
    for program in programs.values():
        program.close()


def loading(folder, rounds, threads):
    import numpy
    from safetensors.numpy import save_file

    place = folder / "gpt2-random"
    place.mkdir()
    width, rng = 768, numpy.random.default_rng(1)
    shapes = {"wte.weight": (50_257, width), "wpe.weight": (1024, width), "ln_f.weight": (width,), "ln_f.bias": (width,)}
    for layer in range(12):
        for name, shape in {
            "ln_1": (width,), "attn.c_attn": (width, 3 * width), "attn.c_proj": (width, width),
            "ln_2": (width,), "mlp.c_fc": (width, 4 * width), "mlp.c_proj": (4 * width, width),
        }.items():
            shapes[f"h.{layer}.{name}.weight"], shapes[f"h.{layer}.{name}.bias"] = shape, shape[-1:]
    save_file(
        {name: 0.02 * rng.standard_normal(shape, dtype=numpy.float32) for name, shape in shapes.items()},
        place / "model.safetensors", {"format": "pt"},
    )
    config = {
        "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_embd": width, "n_layer": 12, "n_head": 12, "n_positions": 1024,
        "n_ctx": 1024, "vocab_size": 50_257, "layer_norm_epsilon": 1e-5, "activation_function": "gelu_new", "eos_token_id": 50_256,
    }
    (place / "config.json").write_text(json.dumps(config))
    for kind in ("f32", "q8_0"):
        ours = Ours("directory", [str(place), kind], threads)
        answers = [ours.ask(load=True) for _ in range(rounds)]
        ratio = statistics.median(answer["load_s"] / answer["read_s"] for answer in answers)
        first = answers[0]
        print(
            f"gpt2-124m as {kind}: loads {first['file_bytes'] / 1e6:.0f} MB in {statistics.median(a['load_s'] for a in answers):.2f} s, "
            f"{ratio:.2f} times the time of reading them (aim: 2); memory {first['most_bytes'] / 1e6:.0f} MB at most, "
            f"{first['bytes'] / 1e6:.0f} MB at the end",
            flush=True,
        )
        ours.close()


def selftest(rounds, threads, device, dtype):
    import torch
    import transformers as t

    messages = subprocess.run(
        ["cargo", "build", "--release", "--bin", "kaskade", "--message-format", "json", *(["--features", "cuda"] if device != "cpu" else [])],
        check=True, stdout=subprocess.PIPE, text=True,
    ).stdout.splitlines()
    program = [path for path in (json.loads(line).get("executable") for line in messages) if path][-1]
    torch_type = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}[dtype]
    # The self-test's kernels may use TF32 on a GPU, so torch may, too.
    torch.set_float32_matmul_precision("highest" if device == "cpu" else "high")

    def ours(network, batch):
        command = [program, "selftest", "--device", device, "--part", "throughput", "--network", network, "--batch", str(batch), "--dtype", dtype]
        environment = {**os.environ, "RAYON_NUM_THREADS": str(threads)}
        report = subprocess.run([*command, "--json", "--quiet"], check=True, stdout=subprocess.PIPE, text=True, env=environment).stdout
        return json.loads(report)["throughput"]["done"]["points"]

    @functools.cache
    def theirs(family, width, blocks, heads, inner, extent):
        sizes = dict(hidden_size=width, num_hidden_layers=blocks, num_attention_heads=heads, intermediate_size=inner)
        if family == "bert":
            return t.BertForSequenceClassification(t.BertConfig(num_labels=2, **sizes)).eval().to(device, torch_type)
        config = t.ViTConfig(image_size=extent, patch_size=16, num_labels=1000, **sizes)
        return t.ViTForImageClassification(config).eval().to(device, torch_type)

    def by_torch(point, seconds=1.0):
        network, extent, batch = point["network"], point["extent"], point["batch"]
        model = theirs(*(network[size] for size in ("family", "width", "blocks", "heads", "inner")), extent)
        if network["family"] == "bert":
            inputs = torch.randint(0, 30_522, (batch, extent))
        else:
            inputs = torch.rand(batch, 3, extent, extent, dtype=torch_type)

        def run():
            began = time.perf_counter()
            with torch.inference_mode():
                model(inputs.to(device)).logits.float().cpu()
            return time.perf_counter() - began

        for _ in range(3):
            run()
        times, began = [], time.perf_counter()
        while not times or time.perf_counter() - began < seconds:
            times.append(run())
        return statistics.median(times)

    for network in ("bert-tiny", "bert-small", "bert-base", "vit-tiny", "vit-base"):
        for batch in (1, 8, 32):
            figures = {}
            for _ in range(rounds):
                for point in ours(network, batch):
                    if "done" in point["measured"]:
                        time.sleep(PAUSE)
                        pair = (point["measured"]["done"]["median_s"], by_torch(point))
                        figures.setdefault(point["extent"], []).append(pair)
            for extent, pairs in figures.items():
                mine, other = (statistics.median(side) for side in zip(*pairs))
                ratios = sorted(torchs / own for own, torchs in pairs)
                print(
                    f"{network} {extent} batch {batch} {dtype}: kaskade {1e3 * mine:.2f} ms, torch {1e3 * other:.2f} ms, "
                    f"ratio {other / mine:.2f} (rounds {ratios[0]:.2f} to {ratios[-1]:.2f})",
                    flush=True,
                )


def main():
    kinds = {"encoders": encoders, **{name: functools.partial(images, name=name) for name in IMAGES}, "decode": decode, "prefill": prefill, "types": types, "loading": loading}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", default=",".join(kinds), help="comma-separated; default: all")
    parser.add_argument("--device", default="cpu", help="of `selftest`: cpu or cuda")
    parser.add_argument("--dtype", default="f32", help="of `selftest`: f32, bf16 or f16")
    arguments = parser.parse_args()
    kinds["selftest"] = lambda folder, rounds, threads: selftest(rounds, threads, arguments.device, arguments.dtype)
    if any(kind in arguments.only for kind in ("encoders", "selftest", *IMAGES)):
        import torch

        torch.set_num_threads(arguments.threads)
    with tempfile.TemporaryDirectory() as folder:
        for kind in arguments.only.split(","):
            kinds[kind](Path(folder), arguments.rounds, arguments.threads)


if __name__ == "__main__":
    main()

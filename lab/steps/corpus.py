"""The corpus of training scripts: public ones by repository, our own, and the data that they read.

The repositories are not in the project. A maintainer checks them out, each under its own name, and
names the folder that has them.
"""

from __future__ import annotations

import gzip
import math
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from lab.places import ROOT
from lab.steps.large_scripts import LARGE
from lab.steps.scripts import CASES, prepare

Generator = Callable[[Path], None]


@dataclass(frozen=True)
class CorpusScript:
    """A script with its arguments, and what makes up its data."""

    name: str
    """The repository and the file in it, or the name of a script of ours."""
    path: Path
    """The file, from the folder of all repositories."""
    arguments: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    """Options of `wavecast run`."""
    data: Generator = prepare
    inside: bool = False
    """Whether the script must run in its own folder, because it finds its files there."""


def no_data(folder: Path) -> None:
    """Write nothing: the script makes its own data."""


def digits(folder: Path) -> None:
    """Write MNIST's files with 2,000 blank digits, where torchvision looks for them."""
    for place in (folder / "data", folder.parent / "data"):
        raw = place / "MNIST" / "raw"
        raw.mkdir(parents=True, exist_ok=True)
        for split in ("train", "t10k"):
            images = struct.pack(">IIII", 2051, 2000, 28, 28) + bytes(2000 * 28 * 28)
            labels = struct.pack(">II", 2049, 2000) + bytes(index % 10 for index in range(2000))
            (raw / f"{split}-images-idx3-ubyte").write_bytes(images)
            (raw / f"{split}-labels-idx1-ubyte").write_bytes(labels)


def words(folder: Path) -> None:
    """Write a text for language models, in the folders that they use."""
    text = "Some plain words stand in a row , and more words follow them .\n" * 4000
    for place in (folder / "data" / "wikitext-2", folder):
        place.mkdir(parents=True, exist_ok=True)
        for split in ("train", "valid", "test", "input", "names"):
            (place / f"{split}.txt").write_text(text)


def tokens(folder: Path) -> None:
    """Write tokens as nanoGPT's preparation does, for each of its datasets."""
    import numpy as np

    numbers = np.random.default_rng(0).integers(0, 50257, 200_000, dtype=np.uint16)
    for name in ("openwebtext", "shakespeare"):
        place = folder / "data" / name
        place.mkdir(parents=True, exist_ok=True)
        for split in ("train", "val"):
            numbers.tofile(place / f"{split}.bin")


def pictures(folder: Path) -> None:
    """Write an image folder of two classes, and pairs of images and masks."""
    import numpy as np
    from PIL import Image

    pixels = np.random.default_rng(0).integers(0, 255, (256, 256, 3), dtype=np.uint8)
    for split in ("train", "val"):
        for kind in ("a", "b"):
            place = folder / "images" / split / kind
            place.mkdir(parents=True, exist_ok=True)
            for index in range(40):
                Image.fromarray(pixels).save(place / f"{index}.jpg")
    for kind in ("imgs", "masks"):
        place = folder / "data" / kind
        place.mkdir(parents=True, exist_ok=True)
        for index in range(40):
            picture = pixels if kind == "imgs" else (pixels[..., 0] > 127).astype(np.uint8)
            name = f"{index}.png" if kind == "imgs" else f"{index}_mask.png"
            Image.fromarray(picture).save(place / name)


def waves(folder: Path) -> None:
    """Write the sine waves of time_sequence_prediction."""
    import torch

    rows = [[math.sin((index + shift) / 20) for index in range(1000)] for shift in range(100)]
    torch.save(torch.tensor(rows).double().numpy(), folder / "traindata.pt")


def encyclopedia(folder: Path) -> None:
    """Write 95 MB of text where language models look for the file enwik8."""
    (folder / "data").mkdir(parents=True, exist_ok=True)
    with gzip.open(folder / "data" / "enwik8.gz", "wb", compresslevel=1) as file:
        file.write(b"Some plain words stand in a row, and more follow them. " * 1_730_000)


def _public(
    place: str,
    arguments: str = "",
    data: Generator = no_data,
    options: str = "",
    inside: bool = False,
) -> CorpusScript:
    script = Path(place.partition("/")[2])  # without the owner of the repository
    return CorpusScript(
        place, script, tuple(arguments.split()), tuple(options.split()), data, inside
    )


_EXAMPLES = "pytorch/examples"
_TRANSFORMERS = "huggingface/transformers/examples/pytorch"
PUBLIC = (
    _public(f"{_EXAMPLES}/mnist/main.py", "", digits),
    _public(f"{_EXAMPLES}/mnist_rnn/main.py", "", digits),
    _public(f"{_EXAMPLES}/mnist_forward_forward/main.py", "", digits, "--steps 4"),
    _public(f"{_EXAMPLES}/mnist_hogwild/main.py", "--num-processes 1 --cuda", digits),
    _public(f"{_EXAMPLES}/siamese_network/main.py", "", digits),
    _public(f"{_EXAMPLES}/vae/main.py", "", digits),
    _public(f"{_EXAMPLES}/dcgan/main.py", "--dataset fake --accel", no_data),
    _public(f"{_EXAMPLES}/imagenet/main.py", "--dummy -a resnet18 -b 64 -j 0"),
    _public(
        f"{_EXAMPLES}/imagenet/main.py",
        "--dummy -a resnet50 -b 256 --multiprocessing-distributed --world-size 1 --rank 0 "
        "--dist-url tcp://127.0.0.1:9999",
        options="--ranks 8",
    ),
    _public(f"{_EXAMPLES}/word_language_model/main.py", "--accel --epochs 1", words),
    _public(f"{_EXAMPLES}/word_language_model/main.py", "--accel --model Transformer", words),
    _public(f"{_EXAMPLES}/regression/main.py"),
    _public(f"{_EXAMPLES}/reinforcement_learning/reinforce.py"),
    _public(f"{_EXAMPLES}/time_sequence_prediction/train.py", "--steps 3", waves),
    _public(f"{_EXAMPLES}/gat/main.py"),
    _public(f"{_EXAMPLES}/distributed/FSDP2/example.py", options="--ranks 2", inside=True),
    _public(f"{_EXAMPLES}/distributed/ddp/example.py", options="--ranks 2"),
    _public(f"{_EXAMPLES}/distributed/minGPT-ddp/mingpt/main.py", options="--ranks 2", inside=True),
    _public("karpathy/nanoGPT/train.py", "--compile=False --eval_iters=1", tokens, inside=True),
    _public("karpathy/nanoGPT/train.py", "--eval_iters=1", tokens, inside=True),
    _public("karpathy/minGPT/projects/adder/adder.py", inside=True),
    _public("karpathy/makemore/makemore.py", "-i names.txt --device cuda", words),
    _public("kuangliu/pytorch-cifar/main.py", inside=True),
    _public("weiaicunzai/pytorch-cifar100/train.py", "-net resnet18 -gpu", inside=True),
    _public("milesial/Pytorch-UNet/train.py", "-b 1", pictures, inside=True),
    _public("facebookresearch/DiT/train.py", "--data-path images/train", pictures, "--ranks 8"),
    _public(
        "huggingface/pytorch-image-models/train.py",
        "--data-dir images --model resnet50 -b 16 --num-classes 2",
        pictures,
    ),
    _public(
        f"{_TRANSFORMERS}/language-modeling/run_clm.py",
        "--config_name gpt2 --tokenizer_name gpt2 --train_file train.txt --do_train --output_dir o",
        words,
    ),
    _public(f"{_TRANSFORMERS}/text-classification/run_glue_no_trainer.py", "--help"),
    _public("huggingface/accelerate/examples/nlp_example.py"),
    _public("huggingface/accelerate/examples/complete_nlp_example.py"),
    _public(
        "huggingface/diffusers/examples/unconditional_image_generation/train_unconditional.py",
        "--train_data_dir images/train --resolution 32 --train_batch_size 4",
        pictures,
    ),
    _public("huggingface/trl/trl/scripts/sft.py"),
    _public("Lightning-AI/litgpt/litgpt/__main__.py", "pretrain pythia-14m --data TextFiles"),
    _public("pytorch/torchtitan/torchtitan/train.py", options="--ranks 8", inside=True),
    _public("pyg-team/pytorch_geometric/examples/gcn.py"),
    _public("PyPI/mingru_pytorch-0.2.1/train.py", data=encyclopedia),
    _public("PyPI/mingru_pytorch-0.2.1/train_hybrid.py", data=encyclopedia),
    _public("PyPI/infini_transformer_pytorch-0.2.1/train.py", data=encyclopedia),
    _public("PyPI/ngpt_pytorch-0.2.16/train.py", data=encyclopedia),
    _public("PyPI/native_sparse_attention_pytorch-0.2.3/train.py", data=encyclopedia),
    _public("KellerJordan/modded-nanogpt/train_gpt.py", data=tokens, options="--ranks 8"),
)
"""Scripts of public repositories, as their pages say to run them. Those of PyPI are in the source
archive of a package (`pip download --no-deps --no-binary :all:`), unpacked under its own name."""


def own() -> Iterator[CorpusScript]:
    """The scripts of tests/scripts."""
    for case in (*CASES, *LARGE):
        shown = f"{case.script.relative_to(ROOT)} ({case.name})"
        yield CorpusScript(shown, case.script, case.arguments)


def corpus() -> tuple[CorpusScript, ...]:
    """All scripts, ours first."""
    return (*own(), *PUBLIC)

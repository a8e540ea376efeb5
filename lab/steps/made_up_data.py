"""Made-up data for the scripts of the corpus: as small as they accept, where they look for it."""

from __future__ import annotations

import gzip
import importlib
import json
import math
import struct
from collections.abc import Callable, Mapping
from pathlib import Path

Generator = Callable[[Path], None]

_SENTENCE = "Some plain words stand in a row, and more words follow them. "


def no_data(folder: Path) -> None:
    """Write nothing: the script makes its own data."""


def digits(folder: Path) -> None:
    """Write MNIST's and Fashion-MNIST's files with 2,000 blank pictures, where scripts look."""
    places = (folder, folder / "data", folder / "mnist", folder.parent / "data")
    for raw in (place / name / "raw" for place in places for name in ("MNIST", "FashionMNIST")):
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


def names(folder: Path) -> None:
    """Write surnames, a file for each language."""
    place = folder / "data" / "names"
    place.mkdir(parents=True, exist_ok=True)
    for language in ("Dutch", "Greek", "Irish"):
        lines = (f"{language}{chr(97 + index % 26)}{chr(97 + index % 7)}" for index in range(400))
        (place / f"{language}.txt").write_text("\n".join(lines))


def shakespeare(folder: Path) -> None:
    """Write a megabyte of text as labml's examples name it."""
    (folder / "data").mkdir(exist_ok=True)
    (folder / "data" / "tiny_shakespeare.txt").write_text(_SENTENCE * 18_000)


def language_model(folder: Path) -> None:
    """Write a small Llama with its tokenizer, and datasets for each of TRL's scripts."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    special = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=list(special.values()))
    tokenizer.train_from_iterator([_SENTENCE], trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="</s>", **special)
    fast.save_pretrained(folder / "model")
    sizes = {"hidden_size": 256, "intermediate_size": 688, "num_hidden_layers": 4}
    config = LlamaConfig(
        **sizes,
        vocab_size=len(fast),
        num_attention_heads=4,
        num_key_value_heads=4,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=2,
    )
    LlamaForCausalLM(config).save_pretrained(folder / "model")
    prompt, long = {"prompt": _SENTENCE}, _SENTENCE * 3
    _rows(folder / "texts" / "train.jsonl", {"text": _SENTENCE * 8})
    _rows(folder / "pairs" / "train.jsonl", prompt | {"chosen": _SENTENCE * 2, "rejected": long})
    _rows(folder / "labels" / "train.jsonl", prompt | {"completion": long, "label": True})


def litgpt_checkpoint(folder: Path) -> None:
    """Write a checkpoint of litgpt with a tokenizer, instructions, and texts."""
    import torch

    litgpt = importlib.import_module("litgpt")
    language_model(folder)
    config = litgpt.Config.from_name("pythia-14m")
    _copy_tokenizer(folder, folder / "checkpoint")
    torch.save(litgpt.GPT(config).state_dict(), folder / "checkpoint" / "lit_model.pth")
    importlib.import_module("litgpt.utils").save_config(config, folder / "checkpoint")
    task = {"instruction": _SENTENCE, "input": "", "output": _SENTENCE * 4}
    (folder / "data.json").write_text(json.dumps([task] * 200))
    for index in range(4):
        (folder / "texts" / f"{index}.txt").write_text(_SENTENCE * 2000)


_DEBUG_MODEL = """[model]
name = "llama3"
flavor = "debugmodel"
hf_assets_path = "./tests/assets/tokenizer"
[training]
local_batch_size = 8
seq_len = 2048
steps = 10
dataset = "c4_test"
"""


def torchtitan_assets(folder: Path) -> None:
    """Write the configuration, the tokenizer and the texts of torchtitan's debug model."""
    language_model(folder)
    (folder / "debug.toml").write_text(_DEBUG_MODEL)
    _copy_tokenizer(folder, folder / "tests" / "assets" / "tokenizer")
    _rows(folder / "tests" / "assets" / "c4_test" / "data.json", {"text": _SENTENCE * 40}, 600)


def _copy_tokenizer(folder: Path, target: Path) -> None:
    target.mkdir(parents=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (target / name).write_text((folder / "model" / name).read_text())


def _rows(path: Path, row: Mapping[str, object], count: int = 400) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(row)}\n" for _ in range(count)))

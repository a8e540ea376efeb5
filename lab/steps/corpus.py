"""The corpus of training scripts: public ones by repository, our own, and the data that they read.

The repositories are not in the project. A maintainer checks them out, each under its own name, and
names the folder that has them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from lab.places import ROOT
from lab.steps import made_up_data as made
from lab.steps.made_up_data import Generator
from lab.steps.scripts import CASES, LARGE, prepare


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


def _public(
    place: str,
    arguments: str = "",
    data: Generator = made.no_data,
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
    _public(f"{_EXAMPLES}/mnist/main.py", "", made.digits),
    _public(f"{_EXAMPLES}/mnist_rnn/main.py", "", made.digits),
    _public(f"{_EXAMPLES}/mnist_forward_forward/main.py", "", made.digits, "--steps 4"),
    _public(f"{_EXAMPLES}/mnist_hogwild/main.py", "--num-processes 1 --cuda", made.digits),
    _public(f"{_EXAMPLES}/siamese_network/main.py", "", made.digits),
    _public(f"{_EXAMPLES}/vae/main.py", "", made.digits),
    _public(f"{_EXAMPLES}/dcgan/main.py", "--dataset fake --accel", made.no_data),
    _public(f"{_EXAMPLES}/imagenet/main.py", "--dummy -a resnet18 -b 64 -j 0"),
    _public(
        f"{_EXAMPLES}/imagenet/main.py",
        "--dummy -a resnet50 -b 256 --multiprocessing-distributed --world-size 1 --rank 0 "
        "--dist-url tcp://127.0.0.1:9999",
        options="--ranks 8",
    ),
    _public(f"{_EXAMPLES}/word_language_model/main.py", "--accel --epochs 1", made.words),
    _public(f"{_EXAMPLES}/word_language_model/main.py", "--accel --model Transformer", made.words),
    _public(f"{_EXAMPLES}/regression/main.py"),
    _public(f"{_EXAMPLES}/reinforcement_learning/reinforce.py"),
    _public(f"{_EXAMPLES}/time_sequence_prediction/train.py", "--steps 3", made.waves),
    _public(f"{_EXAMPLES}/gat/main.py"),
    _public(f"{_EXAMPLES}/distributed/FSDP2/example.py", options="--ranks 2", inside=True),
    _public(f"{_EXAMPLES}/distributed/ddp/example.py", options="--ranks 2"),
    _public(f"{_EXAMPLES}/distributed/minGPT-ddp/mingpt/main.py", options="--ranks 2", inside=True),
    _public(
        "karpathy/nanoGPT/train.py", "--compile=False --eval_iters=1", made.tokens, inside=True
    ),
    _public("karpathy/nanoGPT/train.py", "--eval_iters=1", made.tokens, inside=True),
    _public("karpathy/minGPT/projects/adder/adder.py", inside=True),
    _public("karpathy/makemore/makemore.py", "-i names.txt --device cuda", made.words),
    _public("kuangliu/pytorch-cifar/main.py", inside=True),
    _public("weiaicunzai/pytorch-cifar100/train.py", "-net resnet18 -gpu", inside=True),
    _public("milesial/Pytorch-UNet/train.py", "-b 1", made.pictures, inside=True),
    _public(
        "facebookresearch/DiT/train.py", "--data-path images/train", made.pictures, "--ranks 8"
    ),
    _public(
        "huggingface/pytorch-image-models/train.py",
        "--data-dir images --model resnet50 -b 16 --num-classes 2",
        made.pictures,
    ),
    _public(
        f"{_TRANSFORMERS}/language-modeling/run_clm.py",
        "--config_name gpt2 --tokenizer_name gpt2 --train_file train.txt --do_train --output_dir o",
        made.words,
    ),
    _public(f"{_TRANSFORMERS}/text-classification/run_glue_no_trainer.py", "--help"),
    _public("huggingface/accelerate/examples/nlp_example.py"),
    _public("huggingface/accelerate/examples/complete_nlp_example.py"),
    _public(
        "huggingface/diffusers/examples/unconditional_image_generation/train_unconditional.py",
        "--train_data_dir images/train --resolution 32 --train_batch_size 4",
        made.pictures,
    ),
    _public("pyg-team/pytorch_geometric/examples/gcn.py"),
    _public("KellerJordan/modded-nanogpt/train_gpt.py", data=made.tokens, options="--ranks 8"),
)
"""Scripts of public repositories, as their pages say to run them."""

_IGNITE = "PyPI/pytorch_ignite-0.5.5/examples"
_OPACUS = "PyPI/opacus-1.6.0/examples"
_SPIKING = "PyPI/spikingjelly-2.0.0/spikingjelly/activation_based/examples"
_LABML = "PyPI/labml_nn-0.5.1/labml_nn"
_TRL, _TRL_ARGUMENTS = (
    "PyPI/trl-1.16.0/trl/scripts",
    "--model_name_or_path model --output_dir o --per_device_train_batch_size 4 --report_to none",
)
_LITGPT, _LITGPT_ARGUMENTS = (
    "PyPI/litgpt-0.5.13/litgpt/__main__.py",
    "checkpoint --data JSON --data.json_path data.json --data.val_split_fraction 0.1 "
    "--data.num_workers 0 --train.micro_batch_size 4",
)


def _of_labml(name: str, data: Generator = made.shakespeare) -> CorpusScript:
    return _public(f"{_LABML}/{name}.py", data=data, inside=True)


PYPI = (
    _public("PyPI/mingru_pytorch-0.2.1/train.py", data=made.encyclopedia),
    _public("PyPI/mingru_pytorch-0.2.1/train_hybrid.py", data=made.encyclopedia),
    _public("PyPI/infini_transformer_pytorch-0.2.1/train.py", data=made.encyclopedia),
    _public("PyPI/native_sparse_attention_pytorch-0.2.3/train.py", data=made.encyclopedia),
    _public(f"{_IGNITE}/mnist/mnist.py", data=made.digits),
    _public(f"{_IGNITE}/mnist/mnist_save_resume_engine.py", data=made.digits),
    _public(f"{_IGNITE}/mnist/mnist_with_tensorboard.py", data=made.digits),
    _public(f"{_IGNITE}/reinforcement_learning/reinforce.py"),
    _public(f"{_OPACUS}/mnist.py", "--data-root .", made.digits),
    _public(f"{_OPACUS}/char-lstm-classification.py", "--data-root data/names", made.names),
    _public(f"{_OPACUS}/tensor_parallelism_toy.py", options="--ranks 2"),
    _public(f"{_OPACUS}/fsdp_example.py", "", made.digits, "--ranks 2"),
    _public("PyPI/norse-1.1.0/norse/task/mnist.py", "--device cuda", made.digits),
    _public(
        f"{_SPIKING}/conv_fashion_mnist.py", "-T 4 -data-dir . -amp -opt sgd -j 0", made.digits
    ),
    _public(f"{_SPIKING}/lif_fc_mnist.py", "-data-dir . -j 0", made.digits),
    _public(
        f"{_SPIKING}/rsnn_sequential_fmnist.py",
        "-data-dir . -opt adam -j 0 -model plain",
        made.digits,
    ),
    _public(f"{_SPIKING}/ppo.py"),
    _public(f"{_SPIKING}/a2c.py"),
    _public("PyPI/cleanrl-1.2.0/cleanrl/ppo.py"),
    _public("PyPI/cleanrl-1.2.0/cleanrl/dqn.py"),
    _public(f"{_TRL}/sft.py", f"--dataset_name texts {_TRL_ARGUMENTS}", made.language_model),
    _public(
        f"{_TRL}/sft.py",
        f"--use_peft --lora_target_modules q_proj v_proj --dataset_name texts {_TRL_ARGUMENTS}",
        made.language_model,
    ),
    _public(f"{_TRL}/dpo.py", f"--dataset_name pairs {_TRL_ARGUMENTS}", made.language_model),
    _public(f"{_TRL}/reward.py", f"--dataset_name pairs {_TRL_ARGUMENTS}", made.language_model),
    _public(f"{_TRL}/kto.py", f"--dataset_name labels {_TRL_ARGUMENTS}", made.language_model),
    _public(_LITGPT, f"finetune_lora {_LITGPT_ARGUMENTS}", made.litgpt_checkpoint),
    _public(_LITGPT, f"finetune_full {_LITGPT_ARGUMENTS}", made.litgpt_checkpoint),
    _public(
        _LITGPT,
        "pretrain pythia-14m --tokenizer_dir checkpoint --data TextFiles "
        "--data.train_data_path texts --data.num_workers 0 --train.micro_batch_size 4 "
        "--train.global_batch_size 8",
        made.litgpt_checkpoint,
    ),
    _public(
        "PyPI/open_clip_torch-3.3.0/src/open_clip_train/main.py",
        "--dataset-type synthetic --train-data x --train-num-samples 256 --batch-size 32 "
        "--model ViT-B-32 --workers 0 --precision amp_bf16",
    ),
    _public(
        "PyPI/torchtitan-0.2.2/torchtitan/train.py",
        "--job.config_file debug.toml",
        made.torchtitan_assets,
        "--ranks 8",
    ),
    _of_labml("capsule_networks/mnist", made.digits),
    _of_labml("gan/original/experiment", made.digits),
    _of_labml("gan/wasserstein/gradient_penalty/experiment", made.digits),
    _of_labml("normalization/batch_norm/mnist", made.digits),
    _of_labml("transformers/gpt/__init__"),
    _of_labml("transformers/switch/experiment"),
    _of_labml("transformers/rope/experiment"),
    _of_labml("transformers/alibi/experiment"),
    _of_labml("transformers/hour_glass/experiment"),
    _of_labml("transformers/aft/experiment"),
    _of_labml("transformers/gmlp/experiment"),
    _of_labml("transformers/mlm/experiment"),
    _of_labml("adaptive_computation/ponder_net/experiment"),
    _of_labml("hypernetworks/experiment"),
)
"""Scripts of packages, each unpacked in a folder of its name and version. docs/appendix/scripts.md
says how."""


def own() -> Iterator[CorpusScript]:
    """The scripts of tests/scripts."""
    for case in (*CASES, *LARGE):
        shown = f"{case.script.relative_to(ROOT)} ({case.name})"
        yield CorpusScript(shown, case.script, case.arguments)


def corpus() -> tuple[CorpusScript, ...]:
    """All scripts, ours first."""
    return (*own(), *PYPI, *PUBLIC)

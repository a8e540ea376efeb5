"""What a client may ask: the fields of a question, their bounds, and the name of the answer."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from wavecast.errors import InvalidInput, UnknownName
from wavecast.frameworks.pytorch.huggingface.configs import preset_of, presets
from wavecast.hardware.devices import device
from wavecast.parallel.strategy import Parallel
from wavecast.planning.cost import TrainingPlan
from wavecast.suite import benchmark
from wavecast.targets.targets import DECODERS, hugging_face_name, hugging_face_target

MOST_GPUS = 8
"""GPUs that are compared in one question."""


def plain_name(name: str) -> str:
    """The name itself, if it is one: the library also takes files and code by their paths.

    Raises:
        ValueError: it is not a plain name.
    """
    if not _NAME.fullmatch(hugging_face_name(name) or name) or name.lower().endswith(
        (".toml", ".py")
    ):
        raise ValueError(
            "this is not a name; files and code are not taken here. Trace your own code with "
            "wavecast trace, and upload the trace"
        )
    return name


_NAME = re.compile(r"[A-Za-z0-9 ._+()-]{1,60}")
_Name = Annotated[str, AfterValidator(plain_name)]
_Size = Annotated[int, Field(ge=1, le=10_000_000)]
_Amount = Annotated[float, Field(gt=0, le=1e18, allow_inf_nan=False)]
_Ranks = Annotated[int, Field(ge=1, le=4096)]
_STEP = {
    *("model", "trace", "label", "sizes", "batch", "precision", "compile"),
    *("adapters", "checkpointing"),
}
_STRICT = ConfigDict(extra="forbid", strict=True, frozen=True)


class SpreadQuestion(BaseModel):
    """How the step is spread over several GPUs; the batch is then that of one of them."""

    model_config = _STRICT

    data: _Ranks = 1
    """Replicas, or shards, of the model: each has its own samples."""
    shard: Annotated[int, Field(ge=0, le=3)] = 0
    """The ZeRO stage: 1 shards the optimizer, 2 the gradients too, 3 the weights too (FSDP)."""
    tensor: Annotated[int, Field(ge=1, le=64)] = 1
    pipeline: Annotated[int, Field(ge=1, le=64)] = 1
    microbatches: Annotated[int, Field(ge=1, le=256)] = 1
    cluster: _Name | None = None

    def strategy(self) -> Parallel:
        """The strategy in the words of the library."""
        return Parallel(**self.model_dump())


class TrainingLength(BaseModel):
    """The length of a whole training: iterations, samples, tokens, or epochs of a data set."""

    model_config = _STRICT

    iterations: _Amount | None = None
    samples: _Amount | None = None
    """Samples, or whatever the step counts: nodes, frames, seconds of audio."""
    tokens: _Amount | None = None
    epochs: _Amount | None = None
    dataset_samples: _Amount | None = None
    """The samples of an epoch."""

    @model_validator(mode="after")
    def _one(self) -> TrainingLength:
        given = [self.iterations, self.samples, self.tokens, self.epochs]
        if sum(length is not None for length in given) != 1:
            raise ValueError("give one of iterations, samples, tokens and epochs")
        return self


class PredictionQuestion(BaseModel):
    """A training step, the GPUs to compare, and how the step is run."""

    model_config = _STRICT

    model: _Name | None = None
    """A model of the suite, a decoder of any size, or a shipped one of Hugging Face, as in
    `hf:llama-3.1-8b`. Code is never named here."""
    trace: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None
    """An uploaded file, by the name that the upload gave."""
    label: Annotated[str, Field(max_length=80)] | None = None
    """What to call the uploaded file in the answer."""
    origin: _Name | None = None
    """The GPU on which an uploaded step was measured, if its file does not name one GPU."""
    sizes: Annotated[dict[_Name, _Size], Field(max_length=12)] = {}
    """Sizes of the model, such as `image` or `layers`, where they differ from the published."""
    batch: _Size | None = None
    precision: Literal["fp32", "tf32", "bf16", "fp16"] | None = None
    compile: bool = False
    """Whether the model is compiled with `torch.compile`."""
    adapters: Literal["lora", "qlora"] | None = None
    """Models of Hugging Face: train low-rank adapters only; `qlora` stores the rest in 4 bits."""
    checkpointing: bool = False
    """Models of Hugging Face: compute activations again in the backward pass."""
    gpus: Annotated[list[_Name], Field(min_length=1, max_length=MOST_GPUS)]
    parallel: SpreadQuestion | None = None
    training: TrainingLength | None = None

    @model_validator(mode="after")
    def _one_target(self) -> PredictionQuestion:
        if (self.model is None) == (self.trace is None):
            raise ValueError("give either a model or a trace")
        if self.trace is not None and (self.sizes or self.compile):
            raise ValueError("sizes and compile are for models: those of a trace are fixed")
        if (self.adapters or self.checkpointing) and not self.of_hugging_face:
            raise ValueError("adapters and checkpointing are for models of Hugging Face (hf:NAME)")
        if self.model is not None and (self.label is not None or self.origin is not None):
            raise ValueError("label and origin are for an uploaded file")
        return self

    @property
    def of_hugging_face(self) -> bool:
        """Whether the model is one of Hugging Face."""
        return hugging_face_name(self.model or "") is not None

    @property
    def plan(self) -> TrainingPlan | None:
        """The whole training in the words of the library; None if it was not asked for."""
        return None if self.training is None else TrainingPlan(**self.training.model_dump())

    def canonical(self) -> PredictionQuestion:
        """The same question in the library's own names, so that equal questions are equal.

        Raises:
            UnknownName: there is no such model or GPU.
            InvalidInput: the strategy contradicts itself.
        """
        name = None if self.model is None else library_name(self.model)
        spread = self.parallel
        if spread is not None and spread.strategy().gpus > 16_384:
            raise InvalidInput("a step is spread over at most 16384 GPUs here")
        gpus = list(dict.fromkeys(device(gpu).id for gpu in self.gpus))
        alone = spread is None or spread == SpreadQuestion()
        origin = None if self.origin is None else device(self.origin).id
        own = {"model": name, "gpus": gpus, "origin": origin}
        return self.model_copy(update=own | {"parallel": None if alone else spread})

    def step(self) -> dict[str, Any]:
        """The part that decides the trace."""
        return self.model_dump(include=_STEP)


class ChoiceQuestion(BaseModel):
    """What the GPUs that are rented for a training must keep to."""

    model_config = _STRICT

    budget_usd: _Amount | None = None
    deadline_h: _Amount | None = None
    most_gpus: Annotated[int, Field(ge=1, le=64)] = 1
    """Also 2, 4, 8, ... GPUs are tried, up to this."""


class PlanQuestion(BaseModel):
    """Many jobs and the GPUs for them."""

    model_config = _STRICT

    jobs: Annotated[str, Field(min_length=1, max_length=24_000)]
    """The content of a file of jobs with their cluster, in TOML."""
    by: Literal["cost", "makespan", "completion", "tardiness"] = "cost"
    robust: bool = False
    """Whether to plan with the high ends of the ranges of times."""


def library_name(name: str) -> str:
    """The name by which the library knows a model; files and code have none here.

    Raises:
        UnknownName: there is no such model.
        ValueError: it is not a plain name.
    """
    if (model := hugging_face_name(plain_name(name))) is not None:
        return _shipped(model)
    return name if name in DECODERS else benchmark(name).name


def _shipped(name: str) -> str:
    preset = preset_of(name)
    if preset is None:
        known = ", ".join(preset.name for preset in presets())
        raise UnknownName(f"no model of Hugging Face ships as {name!r}; known: {known}")
    return hugging_face_target(preset.name)


def digest(*parts: object) -> str:
    """A name for some plain data, equal for equal data on every machine."""
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:32]

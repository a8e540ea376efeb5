"""Training steps of models of transformers, each by the default values of its configuration."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

BATCH = 2
TEXT_LENGTH = 128
RECURRENT_LENGTH = 32
"""Tokens for models that transformers runs token by token, in a loop of thousands of ops."""
MEL_FRAMES = 1024
SAMPLING_RATE = 16_000

# Which task a model is trained for, by kind of model. The names are transformers' model types.
MODELS: dict[str, dict[str, str]] = {
    "language": {
        "causal": """
            gpt2 gpt_neo gpt_neox gptj gpt_bigcode opt bloom mpt falcon llama mistral qwen2 qwen3
            gemma gemma2 gemma3_text phi phi3 stablelm olmo2 cohere2 granite starcoder2 smollm3
            glm4 exaone4 ernie4_5 xlnet
        """,
        "masked": """
            bert roberta albert distilbert electra deberta-v2 modernbert longformer big_bird funnel
            mpnet xlm-roberta convbert
        """,
        "seq2seq": "t5 bart pegasus led marian m2m_100 longt5",
    },
    "vision": {
        "image": """
            vit deit swin swinv2 beit convnext convnextv2 resnet dinov2 segformer mobilevit
            mobilenet_v2 efficientnet regnet cvt levit poolformer pvt_v2 focalnet hiera bit
        """,
        "masked image": "vit_mae",
        "semantic": "segformer mobilevit upernet",
        "depth": "glpn",
        "detection": "yolos rt_detr",
        "panoptic": "maskformer mask2former",
        "video": "videomae timesformer vivit",
    },
    "audio": {
        "speech to characters": "wav2vec2 hubert wavlm sew unispeech data2vec-audio",
        "spectrogram": "audio-spectrogram-transformer",
        "speech to text": "whisper speech_to_text",
    },
    "multimodal": {
        "contrastive": "clip siglip altclip align clipseg blip",
        "image and text": """
            llava vipllava paligemma internvl git
        """,
        "question": "vilt",
        "document": "layoutlmv3",
    },
    "state space": {
        "causal, token by token": "mamba falcon_mamba jamba rwkv recurrent_gemma",
        "causal": "mamba2 zamba2 bamba falcon_h1 xlstm nemotron_h",
    },
    "mixture of experts": {
        "causal": """
            mixtral qwen2_moe qwen3_moe olmoe deepseek_v2 deepseek_v3 gpt_oss phimoe granitemoe
            jetmoe glm4_moe llama4_text qwen3_next
        """,
        "seq2seq": "switch_transformers nllb-moe",
    },
    "time series": {"series": "patchtst patchtsmixer"},
}
# Types whose model transformers does not choose by the configuration alone.
_CLASSES = {
    "deit": "DeiTForImageClassification",
    "levit": "LevitForImageClassification",
    "patchtst": "PatchTSTForPrediction",
    "patchtsmixer": "PatchTSMixerForPrediction",
}


def transformers_step(
    task: str, model_type: str, config_of: Callable[[str], Any] | None = None
) -> Callable[[], Callable[[], None]]:
    """A `make_step`: bf16 autocast, the model's own loss, AdamW; the default configuration, unless
    a function gives another."""

    def make() -> Callable[[], None]:
        import transformers

        config = (config_of or transformers.AutoConfig.for_model)(model_type)
        config.use_cache = False  # which is for generating text
        auto, inputs_of = TASKS[task]
        if model_type in _CLASSES:
            model = getattr(transformers, _CLASSES[model_type])(config)
        else:
            model = getattr(transformers, auto).from_config(config)
        model = model.cuda().train()
        inputs = inputs_of(config)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

        def step() -> None:
            optimizer.zero_grad()
            with torch.autocast("cuda", torch.bfloat16):
                loss = model(**inputs).loss
            loss.backward()
            optimizer.step()

        return step

    return make


def _side(config: Any, default: int = 224) -> tuple[int, int]:
    """The height and width of the images that a model expects."""
    for part in (config, getattr(config, "vision_config", None)):
        size = getattr(part, "image_size", None)
        if isinstance(size, int):
            return size, size
        if isinstance(size, list | tuple):
            return int(size[0]), int(size[1])
    return default, default


def _images(config: Any, *frames: int) -> Any:
    channels = getattr(config, "num_channels", None) or 3
    return torch.randn(BATCH, *frames, channels, *_side(config), device="cuda")


def _numbers(below: int, *shape: int) -> Any:
    return torch.randint(0, below, (BATCH, *shape), device="cuda")


def _tokens(config: Any, length: int = TEXT_LENGTH) -> Any:
    return _numbers(config.get_text_config().vocab_size, length)


def _causal(config: Any) -> dict[str, Any]:
    ids = _tokens(config)
    return {"input_ids": ids, "labels": ids}


def _recurrent(config: Any) -> dict[str, Any]:
    ids = _tokens(config, RECURRENT_LENGTH)
    return {"input_ids": ids, "labels": ids}


def _seq2seq(config: Any) -> dict[str, Any]:
    labels = _tokens(config)
    return {"input_ids": _tokens(config, 512), "decoder_input_ids": labels, "labels": labels}


def _image(config: Any) -> dict[str, Any]:
    return {"pixel_values": _images(config), "labels": _numbers(config.num_labels)}


def _semantic(config: Any) -> dict[str, Any]:
    return {"pixel_values": _images(config), "labels": _numbers(config.num_labels, *_side(config))}


def _depth(config: Any) -> dict[str, Any]:
    depths = torch.rand(BATCH, *_side(config), device="cuda")
    return {"pixel_values": _images(config), "labels": depths}


def _detection(config: Any) -> dict[str, Any]:
    targets = [
        {
            "class_labels": torch.randint(0, config.num_labels, (5,), device="cuda"),
            "boxes": torch.rand(5, 4, device="cuda"),
        }
        for _ in range(BATCH)
    ]
    return {"pixel_values": _images(config), "labels": targets}


def _panoptic(config: Any) -> dict[str, Any]:
    height, width = _side(config, 384)
    return {
        "pixel_values": torch.randn(BATCH, 3, height, width, device="cuda"),
        "mask_labels": [torch.rand(5, height, width, device="cuda") for _ in range(BATCH)],
        "class_labels": [torch.randint(0, 2, (5,), device="cuda") for _ in range(BATCH)],
    }


def _video(config: Any) -> dict[str, Any]:
    frames = config.num_frames
    return {
        "pixel_values": torch.randn(BATCH, frames, 3, *_side(config), device="cuda"),
        "labels": _numbers(config.num_labels),
    }


def _ctc(config: Any) -> dict[str, Any]:
    return {
        "input_values": torch.randn(BATCH, 4 * SAMPLING_RATE, device="cuda"),
        "labels": torch.randint(1, config.vocab_size, (BATCH, 32)).cuda(),
    }


def _spectrogram(config: Any) -> dict[str, Any]:
    frames = torch.randn(BATCH, config.max_length, config.num_mel_bins, device="cuda")
    return {"input_values": frames, "labels": _numbers(config.num_labels)}


def _speech(config: Any) -> dict[str, Any]:
    ids = _tokens(config)
    if config.model_type == "whisper":
        shape = (config.num_mel_bins, 2 * config.max_source_positions)
    else:
        shape = (MEL_FRAMES, config.input_feat_per_channel)
    return {"input_features": torch.randn(BATCH, *shape, device="cuda"), "labels": ids}


def _contrastive(config: Any) -> dict[str, Any]:
    length = getattr(config.text_config, "max_position_embeddings", 64)
    return {
        "input_ids": _tokens(config.text_config, min(length, 64)),
        "pixel_values": _images(config.vision_config),
        "return_loss": True,
    }


def _masked_image(config: Any) -> dict[str, Any]:
    return {"pixel_values": _images(config)}


def _series(config: Any) -> dict[str, Any]:
    channels, steps = config.num_input_channels, config.context_length
    return {
        "past_values": torch.randn(BATCH, steps, channels, device="cuda"),
        "future_values": torch.randn(BATCH, config.prediction_length, channels, device="cuda"),
    }


def _image_and_text(config: Any) -> dict[str, Any]:
    """One image and a text for each sample; the text has a token for each part of the image."""
    vision = config.vision_config
    if config.model_type.startswith("qwen"):
        return _patches_and_text(config)
    patch = vision.patch_size
    parts = (_side(vision)[0] // (patch if isinstance(patch, int) else patch[0])) ** 2
    if config.model_type == "git":
        parts = 0
    if config.model_type == "internvl":
        parts = int(parts * config.downsample_ratio**2)
    inputs = _marked_text(config, parts) | {"pixel_values": _images(vision)}
    if config.model_type == "paligemma":
        inputs["token_type_ids"] = torch.zeros_like(inputs["input_ids"])
    return inputs


def _patches_and_text(config: Any) -> dict[str, Any]:
    """Images as a list of patches, with the numbers of patches of each image."""
    vision, side = config.vision_config, 16
    channels = getattr(vision, "in_channels", None) or getattr(vision, "in_chans", 3)
    values = channels * vision.temporal_patch_size * vision.patch_size**2
    return {
        **_marked_text(config, (side // vision.spatial_merge_size) ** 2),
        "pixel_values": torch.randn(BATCH * side**2, values, device="cuda"),
        "image_grid_thw": torch.tensor([[1, side, side]] * BATCH).cuda(),
    }


def _marked_text(config: Any, parts: int) -> dict[str, Any]:
    """Tokens that begin with those that stand for the image; their values matter to the model."""
    mark = getattr(config, "image_token_id", None) or getattr(config, "image_token_index", 0)
    ids = torch.tensor([[mark] * parts + [5] * TEXT_LENGTH] * BATCH).cuda()
    return {"input_ids": ids, "labels": ids}


def _question(config: Any) -> dict[str, Any]:
    return {
        "input_ids": _tokens(config, config.max_position_embeddings),
        "pixel_values": _images(config),
        "labels": torch.rand(BATCH, config.num_labels, device="cuda"),
    }


def _document(config: Any) -> dict[str, Any]:
    corners = torch.arange(TEXT_LENGTH)[:, None].expand(-1, 4).repeat(BATCH, 1, 1)
    return {
        "input_ids": _tokens(config),
        "bbox": corners.cuda(),
        "pixel_values": _images(config),
        "labels": _numbers(config.num_labels, TEXT_LENGTH),
    }


TASKS: dict[str, tuple[str, Callable[[Any], dict[str, Any]]]] = {
    "causal": ("AutoModelForCausalLM", _causal),
    "causal, token by token": ("AutoModelForCausalLM", _recurrent),
    "image and text": ("AutoModelForImageTextToText", _image_and_text),
    "question": ("AutoModelForVisualQuestionAnswering", _question),
    "document": ("AutoModelForTokenClassification", _document),
    "masked": ("AutoModelForMaskedLM", _causal),
    "seq2seq": ("AutoModelForSeq2SeqLM", _seq2seq),
    "image": ("AutoModelForImageClassification", _image),
    "masked image": ("AutoModelForPreTraining", _masked_image),
    "semantic": ("AutoModelForSemanticSegmentation", _semantic),
    "depth": ("AutoModelForDepthEstimation", _depth),
    "detection": ("AutoModelForObjectDetection", _detection),
    "panoptic": ("AutoModelForUniversalSegmentation", _panoptic),
    "video": ("AutoModelForVideoClassification", _video),
    "speech to characters": ("AutoModelForCTC", _ctc),
    "spectrogram": ("AutoModelForAudioClassification", _spectrogram),
    "speech to text": ("AutoModelForSpeechSeq2Seq", _speech),
    "contrastive": ("AutoModel", _contrastive),
    "series": ("AutoModelForTimeSeriesPrediction", _series),
}


def preload() -> None:
    """Import what all models need, before each gets a process of its own."""
    import transformers

    transformers.logging.set_verbosity_error()
    for auto, _ in TASKS.values():
        getattr(transformers, auto)

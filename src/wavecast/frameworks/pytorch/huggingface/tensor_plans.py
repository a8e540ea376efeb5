"""The tensor-parallel plan that transformers has for a model: `base_model_tp_plan`."""

from __future__ import annotations

from wavecast.frameworks.pytorch.huggingface.configs import config_of
from wavecast.frameworks.pytorch.huggingface.models import needing
from wavecast.frameworks.pytorch.huggingface.tasks import task_of


def tensor_plan_of(name: str, task: str | None = None) -> dict[str, str] | None:
    """The plan of a model and its head, for `Parallel(tensor_plan=...)`; None if it has none.

    Args:
        name: a preset, a name in the local cache, or a path; see `configs.config_of`.
        task: what the model is trained for; by default what its config says.
    """
    config = config_of(name)
    if config.diffusion_class is not None:
        return None
    auto_class = task_of(config, task).auto_class
    with needing(f"hf:{name}"):
        import transformers
    if config.model_type not in transformers.CONFIG_MAPPING:
        return None
    settings = transformers.CONFIG_MAPPING[config.model_type]
    base = getattr(settings, "base_model_tp_plan", None)
    if not base:
        return None
    known = getattr(transformers, auto_class)._model_mapping
    model = known.get(settings, None)
    models = model if isinstance(model, tuple) else (model,)
    return {**base, **(getattr(models[0], "_tp_plan", None) or {})}

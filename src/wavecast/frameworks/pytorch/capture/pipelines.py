"""Stages of `torch.distributed.pipelining`, traced on one rank of many.

Before its first step, a stage asks its neighbours for the shapes of what they will send. No other
rank runs here, so the answers come from the stage's own arguments, from what other stages of this
rank send, or from its outputs, whose gradients have the same shapes. All else is torch's own code.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from wavecast.errors import CaptureError
from wavecast.frameworks.pytorch.capture.assumptions import Assumptions
from wavecast.frameworks.pytorch.recording.user_lines import user_line


def pipeline_replacements(assumptions: Assumptions) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Each class of torch's pipelines that asks other ranks, with replacements of its functions."""
    from torch.distributed.pipelining.schedules import _PipelineSchedule
    from torch.distributed.pipelining.stage import PipelineStage

    exchange = _Shapes(assumptions)
    if hasattr(PipelineStage, "_recv_meta") and hasattr(_PipelineSchedule, "_warmup_p2p"):
        yield _PipelineSchedule, {"_warmup_p2p": _warmup}
        yield (
            PipelineStage,
            {
                "_recv_meta": lambda stage, source: exchange.received(stage, source),
                "_send_meta": lambda stage, meta, target: exchange.send(meta),
            },
        )


def _warmup(schedule: Any, stages: list[Any], has_backward: bool, p2p_done: bool) -> None:
    """Decide, without the votes of other ranks, whether shapes are given or found by a first run.

    The ranks would also open their connections here, which happens once, before the steps.
    """
    from torch.distributed.pipelining._utils import InferenceMode
    from torch.distributed.pipelining.stage import PipelineStage

    own = [stage for stage in stages if isinstance(stage, PipelineStage)]
    missing = any(InferenceMode.needs_dynamic(stage._user_meta, has_backward) for stage in own)
    for stage in own:
        stage._inference_mode = InferenceMode.DYNAMIC if missing else InferenceMode.STATIC


class _Shapes:
    """The shapes that stages of this rank send to their neighbours and receive from them."""

    def __init__(self, assumptions: Assumptions) -> None:
        self._assumptions = assumptions
        self._sent: Any = None
        """The shapes of what the last stage sends to another rank."""

    def send(self, meta: Any) -> None:
        from torch.distributed.pipelining._utils import _StageForwardMeta

        if isinstance(meta, _StageForwardMeta):
            self._sent = meta

    def received(self, stage: Any, source: int) -> Any:
        from torch.distributed.pipelining._utils import (
            _derive_grad_metas,
            _StageBackwardMeta,
            _StageForwardMeta,
        )

        if source > stage.stage_index:
            return _StageBackwardMeta(_derive_grad_metas(stage._stage_meta.outputs))
        if stage._user_meta.inputs is not None:
            return _StageForwardMeta(stage._user_meta.inputs)
        if self._sent is None:
            raise CaptureError(
                f"stage {stage.stage_index} of the pipeline, which runs at {user_line()}, does not "
                "know what it receives, because no other rank runs; give PipelineStage(...) its "
                "input_args and output_args, or trace rank 0"
            )
        self._assumptions.note_once(
            f"stage {stage.stage_index} of the pipeline was assumed to receive tensors of the "
            "shapes that an earlier stage of this rank sends"
        )
        return self._sent

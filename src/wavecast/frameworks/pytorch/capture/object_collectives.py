"""Collectives of Python objects: every rank is assumed to have what the traced one has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from wavecast.errors import CaptureError
from wavecast.frameworks.pytorch.capture.assumptions import Assumptions
from wavecast.frameworks.pytorch.recording.user_lines import user_line


def object_collectives(assumptions: Assumptions) -> dict[str, Callable[..., Any]]:
    """The functions of `torch.distributed` that send or gather objects, by name."""

    def note() -> None:
        assumptions.note(
            f"the step sends Python objects between ranks at {user_line()}; all ranks were assumed "
            "to have what the traced one has"
        )

    def all_gather_object(object_list: list[Any], obj: Any, group: Any = None) -> None:
        note()
        object_list[:] = [obj] * len(object_list)

    def gather_object(obj: Any, object_gather_list: Any = None, *_: Any, **__: Any) -> None:
        note()
        if object_gather_list is not None:
            object_gather_list[:] = [obj] * len(object_gather_list)

    def scatter_object_list(received: list[Any], sent: Any = None, *_: Any, **__: Any) -> None:
        if sent is None:
            _refuse("receives objects that another rank scatters")
        note()
        received[0] = sent[0]

    def broadcast_object_list(object_list: list[Any], *_: Any, **__: Any) -> None:
        note()

    def send_object_list(object_list: list[Any], *_: Any, **__: Any) -> None:
        note()

    def recv_object_list(*_: Any, **__: Any) -> None:
        _refuse("receives objects from another rank")

    functions = (all_gather_object, gather_object, scatter_object_list, broadcast_object_list)
    return {f.__name__: f for f in (*functions, send_object_list, recv_object_list)}


def _refuse(action: str) -> None:
    raise CaptureError(
        f"the step {action} at {user_line()}, which cannot be traced, because no other rank runs; "
        "make them on this rank; for a pipeline, trace the whole model and predict it with "
        "parallel=Parallel(pipeline=4)"
    )

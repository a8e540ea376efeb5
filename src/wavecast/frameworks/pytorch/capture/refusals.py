"""Functions of torch that cannot be traced, replaced by errors.

Process groups would wait for other processes; nested tensors and the parameters of lazy layers have
no fake form. Each error names the line of the user's code and what to do instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nested._internal import nested_tensor
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter
from torch.utils import cpp_extension

from wavecast.errors import CaptureError
from wavecast.frameworks.pytorch.recording.user_lines import user_line

_ONE_RANK = (
    "say how many ranks there are, as in ranks=8 (--ranks 8), or trace the step of one rank "
    "instead: without a process group, and with the plain model in place of "
    "DistributedDataParallel or FSDP"
)
_PADDED = (
    "pad the sequences to one length (torch.nn.utils.rnn.pad_sequence), or concatenate them into "
    "one long sequence"
)
_BLOCKS = (
    *("to_sparse_bsr", "to_sparse_bsc", "sparse_bsr_tensor", "sparse_bsc_tensor"),
    "sparse_compressed_tensor",
)
_DENSE = "use the dense form, or to_sparse_csr"
_BUILDING = (
    *((torch.cuda, "_compile_kernel"), (cpp_extension, "load"), (cpp_extension, "load_inline")),
)
_NESTED = ("nested_tensor", "as_nested_tensor", "nested_tensor_from_jagged", "masked_select")


def refused_functions(is_ranked: bool = False) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Each module or class with refused functions, and their replacements by name.

    Args:
        is_ranked: whether the step may start process groups.
    """
    nested = _refusal("makes a nested tensor", _PADDED)
    yield torch.nested, dict.fromkeys(_NESTED, nested)
    # This class makes the jagged ones, also for code that imported a function before tracing.
    yield nested_tensor.NestedTensor, {"__new__": nested}
    lazy = _refusal("makes a lazy layer", "give the number of its inputs, as in nn.Linear(512, 10)")
    for parameter in (UninitializedParameter, UninitializedBuffer):
        yield parameter, {"__new__": lazy}
    blocks = _refusal("makes a sparse tensor of blocks (BSR and the like)", _DENSE)
    for owner in (torch, torch.Tensor):
        yield owner, {name: blocks for name in _BLOCKS if hasattr(owner, name)}
    build = _refusal(
        "builds a CUDA kernel from source",
        "its time would not be known; call torch's own ops there, or give the kernel a fake form "
        "with torch.library.custom_op and register_fake",
    )
    for owner, name in _BUILDING:
        if hasattr(owner, name):
            yield owner, {name: build}
    if torch.distributed.is_available():
        yield from _of_one_rank() if is_ranked else _distributed()


def _distributed() -> Iterator[tuple[Any, dict[str, Any]]]:
    from torch.distributed import distributed_c10d
    from torch.distributed.fsdp import FullyShardedDataParallel

    start = _refusal("starts a process group", _ONE_RANK)
    yield torch.distributed, {"init_process_group": start}
    # Code that imported `init_process_group` before tracing calls torch's own, which begins here.
    inner = dict.fromkeys(("rendezvous", "_new_process_group_helper"), start)
    yield distributed_c10d, {"init_process_group": start, **inner}
    for wrapper in (torch.nn.parallel.DistributedDataParallel, FullyShardedDataParallel):
        wrap = _refusal(f"wraps a model in {wrapper.__name__}", _ONE_RANK)
        yield wrapper, {"__init__": wrap}


def _of_one_rank() -> Iterator[tuple[Any, dict[str, Any]]]:
    """What cannot be traced on one rank of many, either."""
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.pipelining import Pipe

    cut = _refusal(
        "lets torch export a model and cut it into stages",
        "give each rank's own part of the model to PipelineStage, or trace the whole model and "
        "predict it with parallel=Parallel(pipeline=4)",
    )
    yield Pipe, {"from_tracing": staticmethod(cut)}
    wrap = _refusal(
        "wraps a model in FullyShardedDataParallel",
        "use its successor, torch.distributed.fsdp.fully_shard, on each block and on the model",
    )
    yield FullyShardedDataParallel, {"__init__": wrap}


def _refusal(action: str, remedy: str) -> Callable[..., Any]:
    def refuse(*_: Any, **__: Any) -> Any:
        raise CaptureError(f"the step {action} at {user_line()}, which cannot be traced; {remedy}")

    return refuse

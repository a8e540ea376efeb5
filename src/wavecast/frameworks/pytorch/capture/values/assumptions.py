"""Assumed values and upper bounds for results that depend on data, which fake tensors do not have.

A value that the step reads from the GPU is assumed to be a constant. A size that depends on data
is assumed to be its upper bound or, where the step chose among classes, that of an even choice
(`choices`). Each leaves a note in the trace, with the line of the user's code.
The user can give another value or size for a line.
"""

from __future__ import annotations

import ast
import linecache
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from itertools import islice
from math import ceil
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch
from torch.utils._mode_utils import no_dispatch

from wavecast.errors import CaptureError, InvalidInput
from wavecast.frameworks.pytorch.capture.fake_ops import FAKE_OPS, grouped_mm
from wavecast.frameworks.pytorch.capture.values.host_values import LARGEST_CONSTANT, known_values
from wavecast.frameworks.pytorch.recording.user_lines import is_ours, user_line
from wavecast.frameworks.replacements import replacing

_aten = torch.ops.aten
_TRUE = "_wavecast_true"
_ASSUMED_NUMBER = 1
"""What is assumed for a number that the step reads from the GPU."""


class Assumptions:
    """Returns assumed results, and keeps the notes about them."""

    def __init__(self, given: GivenValues | None = None, stops_at_compile: bool = False) -> None:
        self.notes: dict[str, None] = {}
        self.given = given or GivenValues()
        """The values that the user gave."""
        self._quiet = False
        self.compiled = False
        """Whether the step runs something that torch.compile would compile."""
        self.stops_at_compile = stops_at_compile
        """Whether such a step is to be stopped there, to begin again with a compiler."""
        self.read: dict[str, Any] = {}
        """What was assumed for values that the step read, by the line that read them."""
        self.asks_count = False
        """Whether the user's code asked how many GPUs there are."""
        self._answers: dict[str, None] = {}
        self.asks_capability = False
        """Whether the user's code asked for what depends on the GPU's family."""
        """What the user's code asked about the GPU, at any time."""
        self._read_numbers = False
        self._bounds: dict[str, Callable[..., Any]] = {
            "aten.equal": lambda *_: self._assumed("compares two GPU tensors", False),
            "aten.allclose": lambda *_, **__: self._assumed("compares two GPU tensors", True),
            "aten.is_nonzero": lambda *_: self._assumed("asks whether a GPU tensor is true", False),
            "aten.nonzero": self._nonzero,
            "aten.masked_select": lambda tensor, mask: self._upper(
                tensor, (mask.numel(),), mask=mask
            ),
            "aten.index": self._index,
            "aten.index_put": self._index_put,
            "aten.index_put_": self._index_put,
            "aten._unique2": self._unique,
            "aten.unique_dim": self._unique_dim,
            "aten.unique_consecutive": self._unique_consecutive,
            "aten.bincount": self._bincount,
            "aten.repeat_interleave": self._repeat_interleave,
            "torchvision.nms": lambda boxes, *_: self._upper(boxes, (boxes.shape[0],), torch.int64),
        }
        self._results: dict[Any, Callable[..., Any]] = {
            **FAKE_OPS,
            _aten._local_scalar_dense.default: self._scalar,
            _aten._pack_padded_sequence.default: self._pack_padded_sequence,
            _aten.split_with_sizes.default: self._split_with_sizes,
        }
        if hasattr(_aten, "_grouped_mm"):
            self._results[_aten._grouped_mm.default] = self._grouped_mm

    def find(self, func: Any) -> Callable[..., Any] | None:
        """The function that returns the fake result of an op. None to let torch make it."""
        return self._results.get(func)

    def knows(self, func: Any) -> bool:
        """Whether this class makes the result of an op. It may add a note each time."""
        return func in self._results or _base(func) in self._bounds

    def bound(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of an op whose size depends on data, with its largest possible size."""
        name = _base(func)
        make_result = self._bounds.get(name)
        if make_result is None:
            raise _unbounded(name, "use a form of fixed size (padding, masks) in the step")
        return make_result(*args, **kwargs)

    @contextmanager
    def unnoted(self) -> Iterator[None]:
        """Keep no notes about values that are read inside the block: the step does not use them."""
        with replacing() as replace:
            replace(self, _quiet=True)
            yield

    def note(self, text: str) -> None:
        """Add a note for the reader of the trace, once."""
        self.notes.setdefault(text)

    def note_answer(self, question: str, answer: str) -> None:
        """Note that the user's code asked about the GPU: it may branch on the answer."""
        self._answers.setdefault(
            f"{question} is asked for at {user_line()}; {answer} was answered, and on other GPUs "
            "another answer may lead to other code"
        )

    def note_once(self, text: str) -> None:
        """Add a note that concerns the step, about what runs only before the traced iteration."""
        self._answers.setdefault(text)

    def note_machine(self) -> None:
        """Add the notes about the machine, which concern the set-up as well as the step."""
        self.notes |= self._answers
        if self.compiled:
            self.note("torch.compile was ignored; the step was traced as eager PyTorch")

    def _assumed(self, action: str, value: Any, why: str = "") -> Any:
        if self._quiet:
            return value
        place = user_line()
        given = self.given.read(place, ReadKind.VALUE)
        if given is None:
            self.read[place] = value
            self.note(f"the step {action} at {place}; {value} was assumed{why}")
            return value
        self.note(f"the step {action} at {place}; {given[1]}")
        return whole(given[0], place) if type(value) is int else type(value)(given[0])

    def _scalar(self, tensor: Any) -> Any:
        values = known_values(tensor)
        if values is not None:
            with no_dispatch():
                return values.item()
        return self.assume_value(tensor.dtype, getattr(tensor, _TRUE, False))

    def assume_true(self, tensor: Any) -> None:
        """Assume True when this boolean tensor is read. For others, False is assumed."""
        setattr(tensor, _TRUE, True)

    def assume_value(self, dtype: Any, truth: bool = False) -> Any:
        """The value to assume for a value that the step reads from the GPU."""
        if dtype is torch.bool:
            goes_on = going_on()
            if goes_on is None:
                return self._assumed("reads a GPU value", truth)
            return self._assumed("reads a GPU value", goes_on, ", so that a loop runs to its bound")
        if dtype.is_floating_point:
            return self._assumed("reads a GPU value", float(_ASSUMED_NUMBER))
        self._read_numbers = True
        return self._assumed("reads a GPU value", _ASSUMED_NUMBER)

    def _split_with_sizes(self, tensor: Any, sizes: list[int], dim: int = 0) -> Any:
        """The parts of a tensor. If the step read their sizes from the GPU, they are equal."""
        total = tensor.shape[dim]
        if sum(sizes) != total and sizes == [_ASSUMED_NUMBER] * len(sizes) and self._read_numbers:
            self.note(
                f"the sizes of {len(sizes)} parts at {user_line()} depend on data; equal parts "
                "were assumed"
            )
            share, rest = divmod(total, len(sizes))
            sizes = [share + (part < rest) for part in range(len(sizes))]
        return _aten.split_with_sizes.default(tensor, sizes, dim)

    def _upper(self, like: Any, shape: tuple[int, ...], dtype: Any = None, mask: Any = None) -> Any:
        """A result with a row for each entry that a mask selects, or as many as possible."""
        expected = expected_entries(mask)
        rows = self._size("the size of a result", "depends on data; its", shape[0], expected)
        return like.new_empty((rows, *shape[1:]), dtype=dtype or like.dtype)

    def _size(self, what: str, depends: str, bound: int, expected: int | None = None) -> int:
        """The size of a result: the one that the user gives, else the expected one if there is one,
        else its upper bound."""
        place = user_line()
        size = self._given_size(what, place)
        if size is None and expected is not None:
            self.note(
                f"{what} at {place} depends on which classes (experts) the step chooses; an even "
                f"choice, {expected} of {bound}, was assumed"
            )
            return expected
        if size is None:
            self.note(f"{what} at {place} {depends} upper bound, {bound}, was assumed")
            return bound
        if not 0 <= size <= bound:
            raise CaptureError(f"{size} is given for {what} at {place}; it is at most {bound}")
        return size

    def _given_size(self, what: str, place: str) -> int | None:
        given = self.given.read(place, ReadKind.SIZE)
        if given is None:
            return None
        self.note(f"{what} at {place}: {given[1]}")
        return whole(given[0], place)

    def _selected(self, mask: Any) -> Any:
        """The indices that a mask selects; if its values are unknown, as many as possible."""
        values = known_values(mask)
        if values is None:
            return self._upper(mask, (mask.numel(),), torch.int64, mask)
        with no_dispatch():
            count = int(values.sum())
        return mask.new_empty((count,), dtype=torch.int64)

    def _nonzero(self, tensor: Any) -> Any:
        places = self._upper(tensor, (tensor.numel(), tensor.dim()), torch.int64, tensor)
        are_all = expected_entries(tensor) == len(places) == tensor.numel() <= LARGEST_CONSTANT
        return _all_places(tensor) if are_all else places

    def _plain_indices(self, indices: Any) -> list[Any]:
        """The indices, with each boolean mask replaced by the integer indices that it selects."""
        plain: list[Any] = []
        for index in indices:
            if index is not None and index.dtype in (torch.bool, torch.uint8):
                plain += [self._selected(index)] * index.dim()
            else:
                plain.append(index)
        return plain

    def _index(self, tensor: Any, indices: Any) -> Any:
        return _aten.index.Tensor(tensor, self._plain_indices(indices))

    def _index_put(self, tensor: Any, indices: Any, values: Any, accumulate: bool = False) -> Any:
        return tensor if values is not None else None

    def _unique(
        self,
        tensor: Any,
        sorted: bool = True,
        return_inverse: bool = False,
        return_counts: bool = False,
    ) -> Any:
        """The unique values, inverse and counts; what the step does not ask for is empty."""
        values = self._upper(tensor, (tensor.numel(),))
        count = values.shape[0]
        return values, *_numbered(tensor, return_inverse, tensor.shape, return_counts, count)

    def _unique_consecutive(
        self,
        tensor: Any,
        return_inverse: bool = False,
        return_counts: bool = False,
        dim: int | None = None,
    ) -> Any:
        if dim is not None:
            return self._unique_dim(tensor, dim, True, return_inverse, return_counts)
        return self._unique(tensor, True, return_inverse, return_counts)

    def _unique_dim(
        self,
        tensor: Any,
        dim: int,
        sorted: bool = True,
        return_inverse: bool = False,
        return_counts: bool = False,
    ) -> Any:
        """The unique slices along one dimension, with a number for each slice, and the counts."""
        slices, shape = tensor.shape[dim], list(tensor.shape)
        count = self._size("the size of a result", "depends on data; its", slices)
        shape[dim] = count
        values = tensor.new_empty(shape)
        return values, *_numbered(tensor, return_inverse, (slices,), return_counts, count)

    def _bincount(self, tensor: Any, weights: Any = None, minlength: int = 0) -> Any:
        place = user_line()
        size = self._given_size("the size of bincount's result", place)
        if size is None:
            size = max(minlength, 1)
            self.note(
                f"the size of bincount's result at {place} depends on data; {size} (minlength) "
                "was assumed"
            )
        return tensor.new_empty((size,), dtype=weights.dtype if weights is not None else None)

    def _repeat_interleave(self, repeats: Any, output_size: int | None = None) -> Any:
        place = user_line()
        size = output_size
        if size is None:
            size = self._given_size("the size of repeat_interleave's result", place)
        if size is None:
            raise _unbounded("aten.repeat_interleave", f"pass output_size, or give it for {place}")
        return repeats.new_empty((size,), dtype=torch.int64)

    def _pack_padded_sequence(self, padded: Any, lengths: Any, batch_first: bool) -> Any:
        longest = padded.shape[1 if batch_first else 0]
        values = self.lengths(lengths, longest, "packed sequences")
        sizes = [sum(n > step for n in values) for step in range(max(values))]
        mode = padded.fake_mode
        with no_dispatch():
            counts = torch.LongTensor(sizes)
        fake_counts = mode.fake_tensor_converter.from_real_tensor(mode, counts, make_constant=True)
        return padded.new_empty((sum(sizes), *padded.shape[2:])), fake_counts

    def _grouped_mm(self, a: Any, b: Any, offs: Any = None, *args: Any, **kwargs: Any) -> Any:
        if offs is not None:
            self.note("the groups of grouped matmuls (experts) were assumed to be equally large")
        return grouped_mm(a, b, offs, *args, **kwargs)

    def lengths(self, tensor: Any, bound: int, what: str) -> list[int]:
        """The whole numbers in a tensor; if they are unknown, the upper bound for each."""
        values = known_values(tensor)
        if values is None:
            length = self._size(f"the lengths of {what}", "depend on data; their", bound)
            return [length] * tensor.numel()
        with no_dispatch():
            return [int(n) for n in values.tolist()]


def _unbounded(name: str, hint: str) -> CaptureError:
    return CaptureError(
        f"the size of {name}'s result at {user_line()} depends on the data, and its upper bound is "
        f"not known; {hint}"
    )


def _all_places(mask: Any) -> Any:
    """The indices of all entries. Their values are known: the step may go through them."""
    mode = mask.fake_mode
    with no_dispatch():
        places = torch.ones(mask.shape).nonzero()
    return mode.fake_tensor_converter.from_real_tensor(mode, places, make_constant=True)


def _numbered(tensor: Any, inverse: bool, shape: Any, counts: bool, count: int) -> tuple[Any, Any]:
    """The inverse and the counts of unique values; what the step does not ask for is empty."""
    return (
        tensor.new_empty(shape if inverse else (0,), dtype=torch.int64),
        tensor.new_empty((count if counts else 0,), dtype=torch.int64),
    )


@cache
def _base(func: Any) -> str:
    return ".".join(str(func).split(".")[:2])


# How many entries of a mask are set, where a step chose among classes.
#
# A mixture of experts chooses experts for each token with `topk`, and finds the tokens of an
# expert by `nonzero` of a mask: a row of `one_hot(chosen)`, or `chosen == expert`. The choice
# depends on data, which fake tensors lack. Each class is assumed to be chosen as often as any
# other, which is what the losses that balance experts aim at. So one in eight entries of a mask is
# set if the choice was among eight experts. Tensors are marked with this share, and ops that only
# reshape, select or convert a marked tensor pass the mark on.


_CLASSES = "_wavecast_classes"
"""The mark of chosen indices: among how many classes they were chosen."""
_SHARE = "_wavecast_share"
"""The mark of a mask: which share of its entries is set."""


def expected_entries(mask: Any) -> int | None:
    """How many entries of a mask an even choice sets. None if the mask is of no choice."""
    share = getattr(mask, _SHARE, None)
    return None if share is None else ceil(mask.numel() * share)


def follow(func: Any, args: tuple[Any, ...], out: Any) -> None:
    """Mark what an op returns, if it chooses among classes or handles what was chosen."""
    mark = _MARKING.get(func)
    if mark is not None:
        mark(args, out)


def _chosen(args: tuple[Any, ...], out: Any) -> None:
    """Indices of the largest values along a dimension."""
    of, axis = args[0], args[2] if len(args) > 2 else -1
    if of.dim():
        setattr(out[1], _CLASSES, of.shape[axis])


def _drawn(args: tuple[Any, ...], out: Any) -> None:
    """Indices that are drawn at random."""
    if args[0].dim():
        setattr(out, _CLASSES, args[0].shape[-1])


def _largest(args: tuple[Any, ...], out: Any) -> None:
    """The index of the largest value along a dimension."""
    if len(args) > 1 and args[1] is not None:
        setattr(out, _CLASSES, args[0].shape[args[1]])


def _compared(args: tuple[Any, ...], out: Any) -> None:
    """A mask of where an index is a given one."""
    for tensor in args[:2]:
        classes = getattr(tensor, _CLASSES, None)
        if classes:
            setattr(out, _SHARE, 1.0 / classes)


def _scattered(args: tuple[Any, ...], out: Any) -> None:
    """A mask with an entry for each chosen index."""
    of, axis, index = args[:3]
    if of.dim() and getattr(index, _CLASSES, None) == of.shape[axis]:
        setattr(out, _SHARE, index.numel() / of.numel())


def _kept(args: tuple[Any, ...], out: Any) -> None:
    """The same entries, or some of them, in another shape or dtype."""
    for mark in (_CLASSES, _SHARE):
        value = getattr(args[0], mark, None)
        if value is not None:
            for tensor in out if isinstance(out, list | tuple) else (out,):
                setattr(tensor, mark, value)


def _set(args: tuple[Any, ...], out: Any) -> None:
    """Where a mask is not zero."""
    share = getattr(args[0], _SHARE, None)
    if share is not None and args[1] == 0:
        setattr(out, _SHARE, share)


def _joined(args: tuple[Any, ...], out: Any) -> None:
    """A mask of the rows with a set entry; the choices of one token are of different classes."""
    share = getattr(args[0], _SHARE, None)
    if share is not None and out.numel():
        setattr(out, _SHARE, min(share * args[0].numel() / out.numel(), 1.0))


def _overloads(names: str) -> Iterator[Any]:
    for packet in (getattr(_aten, name) for name in names.split()):
        yield from (getattr(packet, overload) for overload in packet.overloads())


_MARKING: dict[Any, Callable[[tuple[Any, ...], Any], None]] = {
    **dict.fromkeys(
        _overloads(
            "view _unsafe_view permute transpose t select slice squeeze unsqueeze expand alias "
            "detach clone _to_copy unbind split"
        ),
        _kept,
    ),
    **dict.fromkeys((_aten.gt.Scalar, _aten.ne.Scalar), _set),
    **dict.fromkeys((_aten.any.dim, _aten.sum.dim_IntList), _joined),
    **dict.fromkeys((_aten.eq.Tensor, _aten.eq.Scalar), _compared),
    **dict.fromkeys((_aten.scatter.value, _aten.scatter_.value), _scattered),
    _aten.topk.default: _chosen,
    _aten.argmax.default: _largest,
    _aten.multinomial.default: _drawn,
}


# Values that the user gives for results that depend on data, by the line of code that uses them.
#
# A traced step has no data, so what it reads from the GPU is assumed. `assume={"train.py:41":
# 0.5}` gives the value that line 41 reads. Where a line makes a result whose size depends on data,
# such as a boolean mask, it gives the number of rows.


Number = bool | int | float
Given = Number | Sequence[Number]
"""One value, or several in the order in which they are read. The last one is repeated."""

MOST_READS = 10_000
"""How often one line may read a value that is not known, in one call of the step."""
_OFTEN = 100
"""A line that does so this often is taken for the reason if a step does not end."""


class ReadKind(StrEnum):
    """What a line needs to know of the data."""

    VALUE = "value"
    SIZE = "size"


@dataclass(frozen=True)
class _GivenLine:
    """The values given for one line: `FILE:LINE`, or `FILE:LINE:value` or `FILE:LINE:size`."""

    key: str
    file: str
    line: int
    kind: ReadKind | None
    values: tuple[Number, ...]


class GivenValues:
    """The values given for a trace, and how often each line read a value that is not known."""

    def __init__(self, assume: Mapping[str, Given] | None = None) -> None:
        self._lines = [_parsed(key, value) for key, value in (assume or {}).items()]
        self._reads: Counter[tuple[str, ReadKind]] = Counter()
        self._used: dict[str, set[ReadKind]] = {}
        self._places: dict[str, set[ReadKind]] = {}

    def begin(self) -> None:
        """Count the reads of a new call of the step."""
        self._reads.clear()

    def read(self, place: str, kind: ReadKind) -> tuple[Number, str] | None:
        """The value given for a line, and the note about it. None if none is given."""
        self._places.setdefault(place, set()).add(kind)
        count = self._reads[place, kind]
        self._reads[place, kind] += 1
        if count >= MOST_READS:
            raise CaptureError(self._too_often(place, kind))
        for given in self._lines:
            if given.kind in (None, kind) and _is_at(place, given.file, given.line):
                self._use(given, kind, place)
                value = given.values[min(count, len(given.values) - 1)]
                texts = ", ".join(map(str, given.values))
                return value, f"{texts} {'was' if len(given.values) == 1 else 'were'} given"
        return None

    def check_used(self) -> None:
        """Refuse values that are given for lines that read nothing."""
        unused = [given.key for given in self._lines if given.key not in self._used]
        if not unused:
            return
        if not self._places:
            known = "the step reads no value that is not known"
        else:
            known = "such reads are at " + ", ".join(
                f"{place} ({' and '.join(sorted(kinds))})"
                for place, kinds in sorted(self._places.items())
            )
        raise InvalidInput(
            f"a value is given for {', '.join(unused)}, which reads nothing that is not known; "
            f"{known}"
        )

    def _too_often(self, place: str, kind: ReadKind) -> str:
        """The error about a loop, which reads at one line or at several."""
        often = {line for (line, _), count in self._reads.items() if count >= MOST_READS}
        also = "".join(f" and {line}" for line in sorted(often - {place}))
        return _loop_message(f"{place}{also}", place, kind, MOST_READS)

    def why_endless(self) -> str:
        """The line whose loop may be the reason that the step does not end; empty if none is."""
        for (place, kind), count in self._reads.most_common(1):
            if count >= _OFTEN:
                return _loop_message(place, place, kind, count - 1)
        return ""

    def _use(self, given: _GivenLine, kind: ReadKind, place: str) -> None:
        kinds = self._used.setdefault(given.key, set())
        kinds.add(kind)
        if given.kind is None and len(kinds) > 1:
            raise InvalidInput(
                f"{place} reads a value and makes a result whose size depends on data; say which "
                f"of them is given: {given.key}:value or {given.key}:size"
            )


def _loop_message(places: str, place: str, kind: ReadKind, times: int) -> str:
    what = "reads a GPU value" if kind is ReadKind.VALUE else "makes a result of unknown size"
    return (
        f"the step {what} at {places} more than {times:,} times in one call; if a loop waits for a "
        f'value to change, give the values in order, as in assume={{"{place}": [1, 0.5, 0]}} '
        f"(--assume {place}=1,0.5,0), or bound the loop"
    )


def whole(number: Number, place: str) -> int:
    """A given number as a whole number, for a line that needs one."""
    if number != number or number in (float("inf"), float("-inf")) or int(number) != number:
        raise InvalidInput(f"{number} is given for {place}, which needs a whole number")
    return int(number)


def _parsed(key: str, value: Given) -> _GivenLine:
    name, kind = key, None
    for candidate in ReadKind:
        if key.endswith(f":{candidate}"):
            name, kind = key.removesuffix(f":{candidate}"), candidate
    file, _, line = name.rpartition(":")
    if not file or not line.isdecimal():
        raise InvalidInput(
            f"{key!r} is not a line of code; write FILE:LINE, as in train.py:41, and "
            "FILE:LINE:size for the size of a result"
        )
    values = tuple(value) if isinstance(value, list | tuple) else (value,)
    if not values or not all(isinstance(number, bool | int | float) for number in values):
        raise InvalidInput(
            f"{value!r} is given for {key}; give a number, True or False, or a list of them"
        )
    return _GivenLine(key, os.path.normpath(file), int(line), kind, values)


@cache
def _is_at(place: str, file: str, line: int) -> bool:
    """Whether a line of the user's code is in a file, which may be named by its last parts."""
    place_file, _, place_line = place.rpartition(":")
    if place_line != str(line):
        return False
    last_parts = Path(file).parts
    return Path.cwd().joinpath(place_file).parts[-len(last_parts) :] == last_parts


# Which truth value lets a loop go on, where code reads one to decide whether the loop ends.
#
# A generation ends when all of its sequences have ended, or after a largest number of tokens. Only
# the second is known, so the loop is to run to that bound. The code around the read says whether
# it decides about a loop, and whether that loop has another end.


_TORCH = f"{Path(torch.__file__).parent}{os.sep}"
_LOOPS = (ast.For, ast.While)
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
_LEAVING = (ast.Break, ast.Return, ast.Raise)


def going_on() -> bool | None:
    """The value to read now so that a loop goes on to its bound. None if the read decides none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and (
        is_ours(frame.f_code.co_filename) or frame.f_code.co_filename.startswith(_TORCH)
    ):
        frame = frame.f_back
    return None if frame is None else _going_on(frame.f_code, frame.f_lasti)


@cache
def _going_on(code: CodeType, instruction: int) -> bool | None:
    path = _path_to(code, instruction // 2)
    if path and isinstance(path[-1], ast.stmt):
        # Python 3.11 gives a jump the place of its statement. The value was made just before.
        path = _path_to(code, instruction // 2 - 1)
    places = [i for i, node in enumerate(path) if isinstance(node, ast.stmt)]
    if not places:
        return None
    statement, tests = path[places[-1]], path[places[-1] + 1 :]
    if not isinstance(statement, ast.If | ast.While) or tests[:1] != [statement.test]:
        return None
    if not all(isinstance(node, ast.BoolOp | ast.UnaryOp) for node in tests[:-1]):
        return None  # the value is compared or counted first
    loop = statement if isinstance(statement, ast.While) else _loop_around(path[: places[-1]])
    goes = isinstance(statement, ast.While) or _goes_where(statement)
    if loop is None or goes is None or not _has_other_end(loop, statement):
        return None
    negations = sum(isinstance(getattr(node, "op", None), ast.Not) for node in tests[:-1])
    return goes if negations % 2 == 0 else not goes


@cache
def _tree(file: str) -> ast.AST:
    try:
        return ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return ast.Module([], [])


def _path_to(code: CodeType, index: int) -> list[ast.AST]:
    """The syntax nodes around an instruction's piece of code, the outermost first."""
    first, last, begin, end = next(islice(code.co_positions(), index, None))
    if first is None or last is None or begin is None or end is None:
        return []

    def holds(node: Any) -> bool:
        if not hasattr(node, "end_lineno"):
            return False
        span = (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)
        return bool(span[0] <= (first, begin) and (last, end) <= span[1])

    path: list[ast.AST] = []
    node: ast.AST | None = _tree(code.co_filename)
    while node is not None:
        node = next(filter(holds, ast.iter_child_nodes(node)), None)
        path += [] if node is None else [node]
    return path


def _loop_around(path: Sequence[ast.AST]) -> ast.For | ast.While | None:
    """The innermost loop of a function on the path to a statement in it."""
    for node in reversed(path):
        if isinstance(node, _SCOPES):
            return None
        if isinstance(node, _LOOPS):
            return node
    return None


def _goes_where(statement: ast.If) -> bool | None:
    """Whether the loop goes on where the condition is true; None if it does not decide that."""
    leaves = [
        bool(part) and isinstance(part[-1], _LEAVING) for part in (statement.body, statement.orelse)
    ]
    return None if leaves[0] == leaves[1] else leaves[1]


def _has_other_end(loop: ast.For | ast.While, statement: ast.stmt) -> bool:
    """Whether a loop ends without a statement's decision, or with another part of it."""
    test = statement.test if isinstance(statement, ast.If | ast.While) else None
    if isinstance(loop, ast.For) or isinstance(_positive(test), ast.BoolOp):
        return True
    if loop is not statement and not isinstance(loop.test, ast.Constant):
        return True
    return any(_ends(loop.body, statement))


def _positive(test: ast.expr | None) -> ast.expr | None:
    return test.operand if isinstance(test, ast.UnaryOp) else test


def _ends(body: Sequence[ast.AST], deciding: ast.stmt, nested: bool = False) -> Iterator[bool]:
    """True for each statement that leaves a loop, but for the one that the read decides."""
    for node in body:
        if isinstance(node, _SCOPES):
            continue
        if isinstance(node, _LEAVING) and not (nested and isinstance(node, ast.Break)):
            yield True
        parts = list(ast.iter_child_nodes(node))
        if node is deciding and isinstance(node, ast.If):
            parts = [*(node.orelse if _goes_where(node) is False else node.body)]
        yield from _ends(parts, deciding, nested or isinstance(node, _LOOPS))

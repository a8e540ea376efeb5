"""Graph breaks as notes: the user's line and one sentence."""

from __future__ import annotations

from traceback import FrameSummary

import torch

from wavecast.frameworks.pytorch.compiled.compiling import breaks_as_notes

_TORCH = torch.__file__


def test_a_note_names_the_innermost_line_of_the_user_and_the_reason() -> None:
    reason = "Failed\n  Explanation: Dynamo does not trace `print` with argument types ['str'].\n"
    frames = [FrameSummary("train.py", 41, "forward"), FrameSummary(_TORCH, 7, "call")]
    expected = "torch.compile: graph break at train.py:41: Dynamo does not trace `print`"
    assert breaks_as_notes([(reason, frames)]) == [expected]


def test_equal_breaks_are_noted_once() -> None:
    frames = [FrameSummary("train.py", 41, "forward")]
    breaks = [("generic_jump TensorVariable()", frames)] * 2
    assert breaks_as_notes(breaks) == [
        "torch.compile: graph break at train.py:41: a branch depends on the values of a tensor"
    ]


def test_a_break_inside_a_library_is_noted_where_the_user_called_it() -> None:
    reason = "aten._local_scalar_dense"
    inside = [FrameSummary(_TORCH, 7, "call")]
    notes = breaks_as_notes([(reason, [FrameSummary("a.py", 1, "f"), *inside]), (reason, inside)])
    assert len(notes) == 1
    assert "a.py:1: a value is read from the GPU" in notes[0]


def test_a_line_of_a_library_is_named_without_the_folder_of_the_libraries() -> None:
    frames = [FrameSummary(_TORCH, 7, "call")]
    assert breaks_as_notes([("generic_jump TensorVariable()", frames)]) == [
        "torch.compile: graph break at torch/__init__.py:7: a branch depends on the values of a "
        "tensor"
    ]


def test_a_note_does_not_tell_the_folders_of_a_machine() -> None:
    reason = "Explanation: the function `f` in file `/somewhere/mine/src/net.py` is not traced."
    [note] = breaks_as_notes([(reason, [])])
    assert "`f` in file `net.py`" in note

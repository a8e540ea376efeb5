"""The line of the user's code: not ours and not a library's, but a suite model counts."""

from __future__ import annotations

import subprocess

import pytest
import torch

from wavecast.cli.output import screen
from wavecast.errors import CaptureError
from wavecast.frameworks.pytorch import capture
from wavecast.frameworks.pytorch.recording import user_lines
from wavecast.suite.models import vision as vision
from wavecast.targets import targets as targets


@pytest.mark.parametrize("file", [targets.__file__, capture.__file__, screen.__file__])
def test_our_own_files_are_not_the_users(file: str | None) -> None:
    assert file is not None
    assert not user_lines.is_users(file)


@pytest.mark.parametrize("file", [torch.__file__, subprocess.__file__, "<frozen runpy>"])
def test_libraries_are_not_the_users(file: str) -> None:
    assert not user_lines.is_users(file)


@pytest.mark.parametrize("file", [__file__, vision.__file__])
def test_user_code_and_suite_models_are_named(file: str) -> None:
    assert user_lines.is_users(file)


def test_a_running_line_and_a_failing_line_are_named() -> None:
    assert user_lines.user_line().startswith("tests/frameworks/pytorch/test_user_lines.py:")
    with pytest.raises(CaptureError) as caught:
        raise CaptureError("here")
    line = user_lines.failing_line(caught.value)
    assert line.startswith("tests/frameworks/pytorch/test_user_lines.py:")
    assert user_lines.failing_line(ValueError("never raised")) == "an unknown line"

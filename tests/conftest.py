"""Tests run as if torchvision were not installed: it has no build for the CPU torch they use."""

import sys

sys.modules["torchvision"] = None  # type: ignore[assignment]

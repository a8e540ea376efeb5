"""Where things are in the repository."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[1]
"""The repository."""
DOCS = ROOT / "docs"
MODELS = ROOT / "src" / "wavecast" / "data" / "models"
"""The fitted constants that ship with Wavecast."""
MEASUREMENTS = ROOT / "measurements"
"""What we measured; its README describes every file."""
H200 = MEASUREMENTS / "h200"
"""What we measured on our H200."""

"""Files of fitted lines: a per-layer model as JSON, so that others need not fit it again.

A file is one object: "format", "version", "source", "unit", "left_out", and "lines", each with its
category, pass, seconds, seconds per unit of work, and how it was fitted.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from wavecast.errors import InvalidInput
from wavecast.files import write_whole
from wavecast.reading import parse_json, read_bytes
from wavecast.regression.layers.complexities import Category, Pass
from wavecast.regression.layers.per_layer import Key, LayerModel, Line

FORMAT = "wavecast-layers"
VERSION = 1
_LARGEST_BYTES = 1 << 20
_FIELDS = {"format", "version", "source", "unit", "left_out", "lines"}


def lines_as_records(model: LayerModel) -> list[dict[str, Any]]:
    """The lines of a model as plain data."""
    return [
        {
            "category": str(category),
            "pass": str(which),
            "fixed_s": line.fixed_s,
            "per_unit_s": line.per_unit_s,
            "layers": line.layers,
            "error": line.error,
        }
        for (category, which), line in model.lines.items()
    ]


def write_lines(path: Path, model: LayerModel) -> None:
    """Write the lines of a model as JSON."""
    content = {
        "format": FORMAT,
        "version": VERSION,
        "source": model.source,
        "unit": model.unit,
        "left_out": list(model.left_out),
        "lines": lines_as_records(model),
    }
    write_whole(path, json.dumps(content, indent=1) + "\n")


def read_lines(path: str | Path) -> LayerModel:
    """The model in a file that `write_lines` wrote.

    Raises:
        InvalidInput: it is not such a file; says why.
    """
    prefix = f"cannot read the lines {path}: it "
    content = read_bytes(Path(path), _LARGEST_BYTES, prefix=prefix)
    document = parse_json(content, unique=True, prefix=prefix)
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise InvalidInput(f'{prefix}was not written by "wavecast layers fit"')
    if document.get("version") != VERSION or set(document) != _FIELDS:
        raise InvalidInput(
            f"{prefix}is of version {document.get('version')!r}, and {VERSION} is known; fit again"
        )
    try:
        lines = dict(map(_line, document["lines"]))
        texts = [document["source"], document["unit"], *document["left_out"]]
        if not lines or not all(isinstance(text, str) for text in texts):
            raise ValueError("it has no line, or a text is missing")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvalidInput(f"{prefix}is damaged ({error}); fit again") from None
    return LayerModel(lines, document["source"], document["unit"], tuple(document["left_out"]))


def _line(record: dict[str, Any]) -> tuple[Key, Line]:
    numbers = record["fixed_s"], record["per_unit_s"]
    if not all(isinstance(number, int | float) for number in numbers):
        raise ValueError(f"{numbers} are not two numbers")
    key = Category(record["category"]), Pass(record["pass"])
    return key, Line(float(numbers[0]), float(numbers[1]), record["layers"], record["error"])

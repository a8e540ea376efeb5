"""Fields of results: declared once, shown as JSON, schemas and tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from enum import StrEnum
from typing import Any

import jsonschema
import pytest

from wavecast.report.fields import (
    ABSENT,
    Field,
    columns,
    describe,
    output,
    plain,
    record,
    schema_of,
)
from wavecast.report.outputs import schema, schema_names
from wavecast.report.tables import fitting, left_out, markdown


class Color(StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True)
class Wheel:
    """A wheel."""

    size_bytes: int
    """How large it is."""
    color: Color
    worn: float | None = None


@dataclass(frozen=True)
class Car:
    """A car."""

    name: str
    """What it is called."""
    wheels: tuple[Wheel, ...]
    built: date
    speeds: Mapping[str, float]
    notes: str = ""

    @property
    def fastest_s(self) -> float:
        """The shortest time."""
        return min(self.speeds.values())


CAR = Car(
    "beetle", (Wheel(2048, Color.RED), Wheel(1024, Color.BLUE, 0.5)), date(2026, 1, 2), {"a": 2.0}
)
describe(
    Car,
    Field("name", title="car"),
    Field("fastest_s", title="fastest", rank=2),
    Field("first", lambda car: car.wheels[0].color, kind=Color, title="color", rank=1),
    Field("", "built", title="built in"),
    *map(Field, ("wheels", "built", "speeds")),
    Field("notes", blank=True, title="notes", rank=3),
    parts="wheels",
)


def test_a_record_has_the_declared_fields() -> None:
    assert record(CAR) == {
        "name": "beetle",
        "fastest_s": 2.0,
        "first": "red",
        "wheels": [
            {"size_bytes": 2048, "color": "red", "worn": None},
            {"size_bytes": 1024, "color": "blue", "worn": 0.5},
        ],
        "built": "2026-01-02",
        "speeds": {"a": 2.0},
        "notes": None,
    }


def test_a_schema_follows_from_types_and_texts() -> None:
    made = schema_of(Car)
    assert made["properties"]["fastest_s"] == {
        "description": "The shortest time.",
        "type": "number",
    }
    assert made["properties"]["notes"]["type"] == ["string", "null"]
    wheel = made["properties"]["wheels"]["items"]
    assert wheel["properties"]["size_bytes"]["description"] == "How large it is."
    assert wheel["properties"]["color"]["enum"] == ["red", "blue"]
    assert wheel["properties"]["worn"]["type"] == ["number", "null"]
    checker = jsonschema.Draft202012Validator(made)
    checker.validate(record(CAR))
    wrongs: list[dict[str, Any]] = [{"first": "green"}, {"fastest_s": "2"}, {"wheels": [{}]}]
    for wrong in wrongs:
        assert not checker.is_valid(record(CAR) | wrong), wrong


def test_a_table_has_the_titled_fields_in_the_units_of_their_names() -> None:
    shown = columns([CAR, CAR])
    assert [column.name for column in shown] == ["car", "fastest", "color", "built in", "notes"]
    assert [column.cells[0] for column in shown] == ["beetle", "2.00 s", "red", "2026-01-02", "?"]
    assert [column.left for column in shown] == [True, False, True, False, False]
    assert columns(CAR.wheels)[0].cells == ["2.00 KiB", "1.00 KiB"]
    assert markdown(shown[:2])[2] == "| beetle | 2.00 s |"


def test_columns_that_do_not_fit_are_named() -> None:
    every = columns([CAR])
    kept = fitting(every, 22)
    assert [column.name for column in kept] == ["car", "built in"]
    assert left_out(every, kept) == ["left out, the terminal is too narrow: fastest, color"]
    assert left_out(every, fitting(every, 200)) == [], "what is unknown is not left out for width"


def test_texts_of_columns_that_must_stay_fold() -> None:
    assert [column.folds for column in fitting(columns([CAR]), 5)] == [True, False]


def test_an_output_joins_results_and_may_leave_out_keys() -> None:
    made = output(
        "A car of an owner.",
        Field("owner", kind=str, meaning="Who has it."),
        Field("", "car", kind=Car, inline=True),
        Field("price", kind=float | None, optional=True, meaning="What it costs."),
    )
    assert made.record({"owner": "me", "car": CAR}) == {"owner": "me"} | record(CAR)
    assert made.record({"owner": "me", "car": CAR, "price": None})["price"] is None
    assert "price" not in made.record({"owner": "me", "car": CAR, "price": ABSENT})
    required = made.schema()["required"]
    assert required[0] == "owner"
    assert "name" in required
    assert "price" not in required


def test_plain_data_of_a_result_does_not_depend_on_what_is_imported() -> None:
    from made import step

    assert "peak_bytes" not in plain(step())
    assert plain(step())["calls"] == len(step())


def _properties(part: Any, path: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for name, inner in part.get("properties", {}).items():
        yield f"{path}.{name}", inner
        yield from _properties(inner, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if isinstance(part.get(key), dict):
            yield from _properties(part[key], path)
    for key in ("anyOf", "oneOf"):
        for inner in part.get(key, ()):
            yield from _properties(inner, path)


@pytest.mark.parametrize("name", schema_names())
def test_every_key_of_every_schema_has_a_type_and_a_meaning(name: str) -> None:
    found = list(_properties(schema(name), name))
    assert found
    assert [path for path, part in found if not part.get("description", "").endswith(".")] == []
    types = {"type", "anyOf", "enum", "const"}
    assert [path for path, part in found if not types & part.keys()] == []

"""Which products are padded, compared with what torch 2.11 padded on an H200."""

from __future__ import annotations

import pytest

from wavecast.frameworks.pytorch.compiled.target import Operand, is_faster_padded, target_of
from wavecast.hardware.devices import device

BYTES = {"float32": 4, "tf32": 4, "bfloat16": 2}
WIDTH = 768
TARGET = target_of(device("h200-sxm"), (9, 0))


def padded(precision: str, product: str, rows: int, words: int) -> bool:
    """Whether a product of a model's last layer is padded: the forward one, or a gradient."""
    size = BYTES[precision]
    weights, scores = size * WIDTH * words, size * rows * words
    is_cast = precision == "bfloat16"  # autocast makes the weights anew, so they can be planned
    sizes, operands = {
        "forward": ((rows, WIDTH, words), (Operand(weights, False, False),)),
        "of input": (
            (rows, words, WIDTH),
            (Operand(scores, True, True), Operand(weights, is_cast, True)),
        ),
        "of weights": ((words, rows, WIDTH), (Operand(scores, False, False),)),
    }[product]
    return is_faster_padded(TARGET, precision, (1, *sizes), operands)


@pytest.mark.parametrize(
    ("precision", "rows", "words", "measured"),
    [
        ("bfloat16", 4096, 50_257, (True, True, True)),
        ("bfloat16", 8192, 50_257, (True, True, True)),
        ("bfloat16", 8192, 30_522, (True, True, False)),
        ("tf32", 2048, 50_257, (True, True, False)),
        ("tf32", 2048, 50_265, (True, True, False)),
        ("tf32", 1024, 50_257, (False, True, False)),
        ("tf32", 1024, 50_265, (False, True, False)),
        ("float32", 1024, 30_522, (False, False, False)),
        ("float32", 2048, 30_522, (False, False, False)),
    ],
)
def test_products_with_a_vocabulary_are_padded_as_on_an_h200(
    precision: str, rows: int, words: int, measured: tuple[bool, bool, bool]
) -> None:
    products = ("forward", "of input", "of weights")
    assert tuple(padded(precision, p, rows, words) for p in products) == measured


def test_a_small_product_does_not_pay_for_a_copy() -> None:
    operand = Operand(2 * 64 * 65, is_planned=False, is_contiguous=True)
    assert not is_faster_padded(TARGET, "bfloat16", (1, 64, 64, 65), (operand,))

"""Does the model of fused kernels hold on GPUs where no fused kernel was measured?

    python -m lab.score.fused_transfer --data FOLDER

Takes eager ops that read and write each byte once (elementwise ops, softmax, layer norm) from the
public tables, describes each as the fused kernel that Inductor would make of it alone, and compares
its prediction with the measured time, GPU by GPU. All constants of the model were fitted on our
H200. Only elementwise ops judge the model: Inductor writes the same loop for them. Eager softmax
and layer norm are other kernels, and stand apart. Needs pandas and the table neusight
(docs/sources.md).
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

from lab.measured.op_row import OpRow
from lab.measured.public_ops import public_rows
from wavecast import ops
from wavecast.hardware.devices import device
from wavecast.ops import Kind
from wavecast.predictors.learned.predictor import Learned
from wavecast.traces.step import Op

KINDS = (Kind.ELEMENTWISE, Kind.SOFTMAX, Kind.NORM)
LONG_S = 20e-6
"""Shorter ops are left out: the tables time them with the host's launch."""
FEWEST = 20


def as_fused(op: Op) -> Op | None:
    """The kernel that Inductor would make of an eager op; None if it has no shapes."""
    cost, kind = ops.cost_of(op), ops.kind(op)
    if cost is None or not op.outputs:
        return None
    whole = max((*op.inputs, *op.outputs), key=lambda tensor: tensor.numel)
    width = whole.shape[-1] if kind in (Kind.SOFTMAX, Kind.NORM) and whole.shape else 1
    sums = "persistent_reduction" if width <= 1024 else "reduction"
    name = "inductor.pointwise" if width == 1 else f"inductor.{sums}"
    large = [tensor for tensor in op.inputs if tensor.numel == whole.numel]
    attrs = (
        ("points", whole.numel // max(width, 1)),
        ("reduction", width),
        ("inner", width > 1),
        ("read_bytes", sum(tensor.touched_bytes for tensor in op.inputs)),
        ("write_bytes", sum(tensor.touched_bytes for tensor in op.outputs)),
        ("loads", float(len(large))),
        ("arithmetic", round(cost.flops / max(whole.numel, 1), 2)),
    )
    return Op(name, op.inputs, op.outputs, attrs)


def errors(rows: list[OpRow]) -> dict[str, list[tuple[Kind, float, float]]]:
    """By GPU: predicted over measured time of each op, as a fused kernel and as itself."""
    found: dict[str, list[tuple[Kind, float, float]]] = {}
    learned = Learned.shipped()
    for row in rows:
        if len(row.ops) != 1 or row.kind not in KINDS or row.seconds < LONG_S:
            continue
        fused = as_fused(row.ops[0])
        if fused is None or "backward" in row.ops[0].base:
            continue
        gpu = device(row.gpu)
        both = learned.predict_all((fused, row.ops[0]), gpu)
        if both[0] is not None and both[1] is not None:
            ratios = both[0].seconds / row.seconds, both[1].seconds / row.seconds
            found.setdefault(row.gpu, []).append((row.kind, *ratios))
    return found


def table(data: Path) -> str:
    """A line for each GPU: how far fused kernels and eager ops are off."""
    lines = [
        "| GPU | elementwise ops | median of predicted over measured | mean error "
        "| as eager ops: mean error | softmax and norm: ops | median |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for gpu, found in sorted(errors(list(public_rows(data))).items()):
        plain = [ratios for kind, *ratios in found if kind is Kind.ELEMENTWISE]
        sums = [ratio for kind, ratio, _ in found if kind is not Kind.ELEMENTWISE]
        if len(plain) < FEWEST:
            continue
        fused, eager = zip(*plain, strict=True)
        off, other = (statistics.mean(abs(r - 1) for r in side) for side in (fused, eager))
        middle = f"{statistics.median(sums):.2f}" if sums else ""
        lines.append(
            f"| {gpu} | {len(plain)} | {statistics.median(fused):.2f} | {off:.1%} | {other:.1%} "
            f"| {len(sums)} | {middle} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    print(table(parser.parse_args().data))


if __name__ == "__main__":
    main()

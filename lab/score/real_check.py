"""How well is ResNet-50 in float32 predicted on GPUs whose throughput others published?

    python -m lab.score.real_check --data FOLDER

Needs torch and two public sets (docs/sources.md): Lambda's throughputs, and a torch.profiler file
of ResNet-50 at batch 32 on a V100. Prints the error of the time per image for each way to predict:
from that profile, from our H200, or without any measurement.
"""

from __future__ import annotations

import argparse
import csv
import statistics
from pathlib import Path

import wavecast
from lab import needs
from lab.measured import campaigns
from wavecast import suite
from wavecast.predictors.roofline import Roofline
from wavecast.predictors.wave import WaveScaling

GPUS = {"V100 SXM2 16GB": "v100-sxm-16gb", "Quadro RTX 8000": "quadro-rtx-8000"}
BATCH = 64
PROFILE = needs.FILES["kineto"][0]
MEASURED = "resnet50-b64"
"""The key of our H200's trace in the campaign `habitat`."""


def published(path: Path) -> dict[str, float]:
    """Images per second of the clean float32 rows with one GPU and synthetic data."""
    rows: dict[str, list[float]] = {}
    with path.open() as file:
        for row in csv.DictReader(file):
            wanted = (row["task"], row["n_gpu"], row["precision_effective"], row["data"])
            if wanted == ("resnet50", "1", "fp32", "synthetic") and not row["flags"]:
                rows.setdefault(row["gpu"], []).append(float(row["throughput"]))
    return {gpu: statistics.median(rates) for gpu, rates in rows.items() if gpu in GPUS}


def main() -> None:
    """Print the error of the time per image for each way to predict it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    needs.add_data(parser, "lambda", "kineto")
    data = parser.parse_args().data
    table, profile = data / "lambda" / "lambda_throughput.csv", data / "kineto" / PROFILE
    benchmark = suite.benchmark("resnet50")
    traced = wavecast.trace(lambda: benchmark.make_step(BATCH, "fp32"))
    measured, seen = campaigns.traces("habitat")[MEASURED], wavecast.read_kineto(profile)
    for gpu, rate in published(table).items():
        name = GPUS[gpu]
        seconds_per_image = {
            "from the V100 profile": wavecast.predict(seen, name).seconds / 32,
            "from the H200": wavecast.predict(measured, name).seconds / BATCH,
            "from the H200 by wave scaling": wavecast.predict(
                measured, name, predictor=WaveScaling()
            ).seconds
            / BATCH,
            "without a measurement, roofline": wavecast.predict(
                traced, name, predictor=Roofline()
            ).seconds
            / BATCH,
            "without a measurement": wavecast.predict(traced, name).seconds / BATCH,
        }
        errors = ", ".join(
            f"{way} {seconds * rate - 1:+.0%}" for way, seconds in seconds_per_image.items()
        )
        print(f"{gpu}, {rate:.0f} images/s: {errors}")


if __name__ == "__main__":
    main()

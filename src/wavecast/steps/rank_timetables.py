"""The timetables of the ranks of a step that is spread over several GPUs."""

from __future__ import annotations

from pathlib import Path

from wavecast.files import write_whole
from wavecast.steps.chrome_trace import chrome_trace
from wavecast.steps.parallel_prediction import ParallelPrediction
from wavecast.steps.timetable import Timetable, of_streams


def rank_timetables(prediction: ParallelPrediction) -> dict[str, Timetable]:
    """One timetable for each distinct rank: its last micro-batch, with reductions and optimizer.

    Without a pipeline all ranks run the same, so there is one. Of a stage with several parts of the
    model, the first part is shown. Empty for a prediction without the predictor that made it.
    """
    player = prediction.player
    if player is None:
        return {}
    groups = prediction.step.groups
    tables = {}
    for group in groups:
        trace = group.parts[0].last
        timed = player.timed(trace)
        played = of_streams(trace.calls, timed.issue_s, player.play(timed))
        tables["each GPU" if len(groups) == 1 else f"stage {group.stage}"] = played
    return tables


def write_chrome_trace(path: str | Path, prediction: ParallelPrediction) -> None:
    """Write the timetables of the ranks as a file that Perfetto and chrome://tracing show."""
    named = f"{prediction.gpus} x {prediction.device.id}"
    tables = rank_timetables(prediction).items()
    steps = {f"{named}, {rank}": table for rank, table in tables}
    write_whole(Path(path), chrome_trace(steps))

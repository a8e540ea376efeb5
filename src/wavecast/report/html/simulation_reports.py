"""The page about policies compared by simulation."""

from __future__ import annotations

from collections.abc import Sequence

from wavecast.planning.simulation.state import Simulation
from wavecast.report.fields import columns
from wavecast.report.html.documents import Report, Section
from wavecast.report.html.gantt_charts import gantt_chart
from wavecast.report.html.markup import escaped, table
from wavecast.report.simulations import outcome_bars, simulation_verdict
from wavecast.report.tables import ANY_WIDTH, fitting


def simulation_report(title: str, rows: Sequence[Simulation]) -> Report:
    """The policies side by side, and a Gantt chart of each."""
    listed = table(fitting(columns(rows), ANY_WIDTH), caption="The policies", sorts=True)
    charts = [
        Section(f"chart-{number}", f"The jobs under {one.policy}", gantt_chart(outcome_bars(one)))
        for number, one in enumerate(rows)
    ]
    sections = (Section("policies", "The policies", listed), *charts)
    return Report(title, escaped(simulation_verdict(rows)), sections)

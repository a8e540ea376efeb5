"""How many GPUs to have: the cheapest mix, the alternatives, and rent against buying."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import RenderableType

from wavecast.planning.capacity import BuyOrRent, CapacityPlan, Mix
from wavecast.report.fields import Field, columns, describe, output
from wavecast.report.tables import line, remarks, table, titled
from wavecast.report.units import money, percent

describe(
    Mix,
    Field("", "name", title="GPUs"),
    Field("counts"),
    Field("usd_per_week", title="rent a week", text=money),
    Field("in_time", title="in time", text=lambda share: percent(share, 1)),
    Field("in_time_low", title="in 9 of 10 draws", text=lambda share: percent(share, 1)),
    Field("utilisation", title="in use", text=percent),
)
describe(
    BuyOrRent,
    Field("pool", title="GPUs"),
    Field("gpus", title="number"),
    Field("rent_usd_per_week", title="rent a week", text=money),
    Field("buy_usd_per_week", title="bought, a week", text=money),
    Field(
        "even_weeks", title="even after weeks", text=lambda weeks: f"{weeks:.0f}", absent="never"
    ),
    Field("even_utilisation", title="even in use", text=percent, absent="never"),
)
_WITHOUT = output(
    "The cheapest mix without some GPUs.",
    Field("without", kind=str, meaning="The pool that is not to be had."),
    Field("mix", kind=Mix | None, meaning="The cheapest mix; null if none keeps the promise."),
)
CAPACITY = output(
    "The cheapest mix of GPUs with which jobs meet their deadlines.",
    Field("verdict", kind=str, meaning="The answer in a sentence."),
    Field("promise", kind=float, meaning="The share of jobs that are to end in time."),
    Field("best", kind=Mix | None, meaning="The cheapest mix; null if none keeps the promise."),
    Field("alternatives", kind=[_WITHOUT], meaning="If a pool is not to be had."),
    Field("curve", kind=[Mix], meaning="Smaller and larger versions of the mix."),
    Field("purchases", kind=[BuyOrRent], meaning="Buying against renting."),
)


def capacity_verdict(found: CapacityPlan) -> str:
    """The answer in a sentence."""
    promise = percent(found.promise)
    if found.best is None:
        return (
            f"No mix within the limits of the cluster lets {promise} of the jobs end in time; "
            "allow more GPUs, or later deadlines."
        )
    best = found.best
    return (
        f"The cheapest mix with which {promise} of the jobs end in time is {best.name}: "
        f"{money(best.usd_per_week)} a week. {percent(best.in_time, 1)} end in time, and "
        f"{percent(best.in_time_low, 1)} or more in nine of ten draws."
    )


def capacity_record(found: CapacityPlan) -> Mapping[str, Any]:
    """The answer by the keys of JSON."""
    return {
        "verdict": capacity_verdict(found),
        "promise": found.promise,
        "best": found.best,
        "alternatives": [{"without": name, "mix": mix} for name, mix in found.without.items()],
        "curve": list(found.curve),
        "purchases": list(found.purchases),
    }


def capacity_text(title: str, found: CapacityPlan) -> RenderableType:
    """The answer, the curve, the alternatives, and rent against buying."""
    body: list[RenderableType] = [line(capacity_verdict(found)), ""]
    if found.curve:
        body += [line("What fewer or more of them would promise:"), table(columns(found.curve)), ""]
    lines = [_instead(name, mix, found) for name, mix in found.without.items()]
    if found.purchases:
        body += [line("Bought instead of rented:"), table(columns(found.purchases)), ""]
        lines.append(
            "even in use: the share of time in use above which buying is cheaper than renting by "
            "the hour"
        )
    return titled(title, *body, *remarks(lines))


def _instead(name: str, mix: Mix | None, found: CapacityPlan) -> str:
    if mix is None:
        return f"without {name}: no mix within the limits keeps the promise"
    assert found.best is not None
    more = mix.usd_per_week - found.best.usd_per_week
    return f"without {name}: {mix.name}, {money(mix.usd_per_week)} a week ({money(more)} more)"


describe(
    CapacityPlan,
    Field("", capacity_verdict, title="verdict"),
    Field("", capacity_record, kind=CAPACITY, inline=True),
    parts="curve",
)

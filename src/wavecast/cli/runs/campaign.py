"""`wavecast campaign`: many measurements and predictions, on one machine or on a cluster."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wavecast.cli.app import Commands, JsonOption, app
from wavecast.cli.options.groups import RayOption
from wavecast.cli.output.screen import counting_down, print_json, print_text, show, warn, width
from wavecast.cli.runs.runs import StoreOption
from wavecast.errors import WavecastError, needing_extra
from wavecast.report.results import evaluations as report

if TYPE_CHECKING:
    from wavecast.campaigns.campaign_files import Campaign
    from wavecast.campaigns.running import Workers
    from wavecast.runs.store.campaign_results import CampaignResults

campaign_app = Commands(
    help="Measure and predict many configurations: here, on all GPUs, or on a Ray cluster.",
    no_args_is_help=True,
)
app.add_typer(campaign_app, name="campaign")

ProcessesOption = Annotated[
    int | None,
    typer.Option(
        "--processes", min=1, help="How many processes predict; by default as many as cores."
    ),
]
PatienceOption = Annotated[
    float,
    typer.Option("--patience", min=0, help="Seconds to wait for a node with a needed GPU."),
]
NameArgument = Annotated[
    str, typer.Argument(metavar="CAMPAIGN", help="The name of the campaign in the store.")
]


@campaign_app.command()
def run(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The campaign (FILE.toml).")],
    store: StoreOption = None,
    name: Annotated[
        str | None, typer.Option("--name", help="Its name; by default as the file says.")
    ] = None,
    ray: RayOption = None,
    processes: ProcessesOption = None,
    patience: PatienceOption = 60.0,
    as_json: JsonOption = False,
) -> None:
    """Run a campaign file: what has no result yet is measured or predicted, and stored once.

    \b
    wavecast campaign run november.toml
    wavecast campaign run november.toml --ray head:6379 --store postgresql://me@host/runs

    If it is interrupted, run it again, or resume it. Tasks that were added to the file are new;
    the others are known by what they ask for.
    """
    from wavecast.campaigns.campaign_files import read_campaign

    with needing_extra("a campaign"):
        from wavecast.runs.store.campaign_results import CampaignResults
        from wavecast.runs.store.store import RunStore
    asked = read_campaign(file, name)
    with RunStore(store, told=_tell) as opened:
        _run(asked, CampaignResults(opened, asked.name), ray, processes, patience, as_json)


@campaign_app.command()
def resume(
    name: NameArgument,
    store: StoreOption = None,
    ray: RayOption = None,
    processes: ProcessesOption = None,
    patience: PatienceOption = 60.0,
    as_json: JsonOption = False,
) -> None:
    """Continue a campaign that was stopped. The store has its file, so no other is needed.

    \b
    wavecast campaign resume november --store postgresql://me@host/runs --ray head:6379
    """
    from wavecast.campaigns.running import kept_campaign

    with _opened(name, store) as results:
        _run(kept_campaign(results), results, ray, processes, patience, as_json)


@campaign_app.command()
def status(
    name: Annotated[
        str | None, typer.Argument(metavar="[CAMPAIGN]", help="Its name; all if not given.")
    ] = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say how far campaigns are, on all nodes together and on each.

    \b
    wavecast campaign status november --store postgresql://me@host/runs
    """
    with needing_extra("a campaign"):
        from wavecast.campaigns.running import status_of
        from wavecast.runs.store.campaign_results import CampaignResults, campaign_names
        from wavecast.runs.store.store import RunStore

    with RunStore(store, told=_tell) as opened:
        names = [name] if name else campaign_names(opened)
        standings = [status_of(CampaignResults(opened, campaign)) for campaign in names]
    if as_json:
        print_json(standings)
    elif standings:
        show(*(report.status_text(campaign, width()) for campaign in standings))
    else:
        print_text(f"{opened.name} has no campaigns; wavecast campaign run FILE begins one")


@campaign_app.command()
def export(
    name: NameArgument,
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder for the files.")],
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write the results of a campaign as files for other commands.

    Layers are for fit, steps of the suite for suite show, whole runs for fit --runs. Predictions
    are a table.

    \b
    wavecast campaign export november -o november/
    """
    from wavecast.campaigns.running import export_results

    with _opened(name, store) as results:
        results.file()
        files = [str(path) for path in export_results(results, out)]
    if as_json:
        print_json(report.EXPORTED.record({"campaign": name, "files": files}))
    else:
        for file in files:
            print_text(file)


@campaign_app.command()
def resources() -> None:
    """Print the GPUs of this machine as Ray takes them, for ray start --resources.

    \b
    ray start --address head:6379 --resources "$(wavecast campaign resources)"
    """
    print_text(json.dumps(_own_resources()))


@contextmanager
def _opened(name: str, store: str | None) -> Iterator[CampaignResults]:
    with needing_extra("a campaign"):
        from wavecast.runs.store.campaign_results import CampaignResults
        from wavecast.runs.store.store import RunStore

    with RunStore(store, told=_tell) as opened:
        yield CampaignResults(opened, name)


def _run(
    campaign: Campaign,
    results: CampaignResults,
    ray: str | None,
    processes: int | None,
    patience: float,
    as_json: bool,
) -> None:
    from wavecast.campaigns.running import run_campaign

    workers = _workers(campaign, ray, processes)
    try:
        with counting_down(campaign.name, len(campaign.tasks)) as update:
            outcome = run_campaign(
                campaign,
                results,
                workers,
                progress=lambda now: update(now.done, now.remaining_s),
                patience_s=patience if ray else 0.0,
            )
    except KeyboardInterrupt:
        done = len(results.done())
        raise KeyboardInterrupt(
            f"{done} of {len(campaign.tasks)} tasks are stored; "
            f"wavecast campaign resume {campaign.name} continues"
        ) from None
    finally:
        workers.close()
    if as_json:
        print_json(outcome)
    else:
        show(report.run_text(outcome))
    if outcome.done < outcome.tasks:
        raise WavecastError(
            f"{outcome.tasks - outcome.done} tasks have no result; run it again to retry"
        )


def _workers(campaign: Campaign, ray: str | None, processes: int | None) -> Workers:
    from wavecast.campaigns.running import MachineWorkers, ThisProcess
    from wavecast.campaigns.work import ANYWHERE, CPU

    if ray is not None:
        from wavecast.campaigns.ray_workers import LOCAL, RayWorkers

        return RayWorkers(ray, _own_resources() if ray == LOCAL else None)
    count = processes or os.cpu_count() or 1
    if not {task.gpu for task in campaign.tasks} - {ANYWHERE, CPU}:
        return ThisProcess() if count == 1 else MachineWorkers((), count)
    return MachineWorkers(_own_gpus(), count)


def _own_resources() -> dict[str, int]:
    """The GPUs of this machine by their ids, and a CPU, of which one is measured at a time."""
    from wavecast.campaigns.work import CPU

    return {**Counter(_own_gpus()), CPU: 1}


def _own_gpus() -> list[str]:
    """The ids of this machine's GPUs."""
    with needing_extra("measuring"):
        from wavecast.frameworks.pytorch.measurement.layers import gpu_ids

    return list(gpu_ids())


def _tell(line: str) -> None:
    warn([line])

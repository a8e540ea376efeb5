"""`wavecast prices`: the offers of GPUs that are known, and newer ones."""

from __future__ import annotations

import datetime
import urllib.error
import urllib.request
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from wavecast.cli.app import Commands, JsonOption, app
from wavecast.cli.options.steps import ALL, gpu_names, named_gpus
from wavecast.cli.output.screen import print_json, print_text, show, waiting, warn, width
from wavecast.errors import InvalidInput
from wavecast.planning.prices import (
    SKYPILOT,
    SKYPILOT_PROVIDERS,
    PriceBook,
    PriceFilter,
    catalogue_of,
    price_book,
    read_catalogue,
    read_prices,
    today,
    user_prices,
    write_prices,
)
from wavecast.report.results import costs as report

_TIMEOUT_S = 20
_LARGEST_BYTES = 64 << 20
"""The most that is read of a catalogue from the network."""


class Sort(StrEnum):
    """The orders in which offers are listed."""

    PRICE = "price"
    GPU = "gpu"
    PROVIDER = "provider"
    DATE = "date"


prices_app = Commands(
    name="prices",
    help="List what GPUs cost, or get newer prices.",
    invoke_without_command=True,
    rich_markup_mode=None,
)
app.add_typer(prices_app)


@prices_app.callback()
def prices(
    ctx: typer.Context,
    gpu: Annotated[
        list[str] | None,
        typer.Option(
            "--gpu",
            "-g",
            autocompletion=gpu_names,
            help='Show all offers of a GPU; repeat, or "all".',
        ),
    ] = None,
    gpus: Annotated[
        int, typer.Option("--gpus", min=1, help="Only machines with at least so many GPUs.")
    ] = 1,
    providers: Annotated[
        str | None, typer.Option("--providers", help="Only these providers, as in aws,gcp.")
    ] = None,
    spot: Annotated[bool, typer.Option("--spot", help="Also spot offers.")] = False,
    stale: Annotated[
        bool, typer.Option("--stale", help="Also offers that were old when the table was made.")
    ] = False,
    sort: Annotated[Sort, typer.Option("--sort", help="The order of the offers.")] = Sort.PRICE,
    table: Annotated[
        Path | None, typer.Option("--prices", help="Your own table of prices (FILE.toml).")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List what GPUs cost, or get newer prices.

    \b
    wavecast prices                              the cheapest offer of each GPU
    wavecast prices --gpu h100-sxm-80gb --spot   all offers of one
    wavecast prices --gpus 8 --providers aws,gcp
    wavecast prices update                       get newer prices from the network
    wavecast prices update vms.csv --provider aws

    Prices are in USD per GPU and hour. An offer of a machine with eight GPUs is no offer of one.
    """
    if ctx.invoked_subcommand is not None:
        return
    book = price_book() if table is None else read_prices(table)
    names = tuple(name.strip().lower() for name in (providers or "").split(",") if name.strip())
    book = book.looking_at(PriceFilter(names, spot, stale))
    offers = [offer for offer in book.seen() if offer.gpus >= gpus]
    if gpu and ALL not in gpu:
        ids = {device.id for device in named_gpus(gpu)}
        offers = [offer for offer in offers if offer.device_id in ids]
    elif not gpu:
        offers = report.cheapest_of_each(offers)
    if not offers:
        raise InvalidInput(
            "no such offer is known; leave out options, or add --spot or --stale; the providers "
            f"are {', '.join(book.providers())}"
        )
    offers.sort(key=report.ORDERS[sort])
    if as_json:
        known = {"date": book.date, "source": book.source, "offers": offers}
        print_json(report.OFFERS.record(known))
        return
    show(report.offers(offers, book, width(), is_summary=not gpu))


@prices_app.command()
def update(
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="[FILE]",
            help="A table of prices (FILE.toml) or a catalogue of SkyPilot's (FILE.csv). Without "
            "it, the catalogue is read from the network.",
        ),
    ] = None,
    provider: Annotated[
        str | None,
        typer.Option("--provider", help="The provider of FILE.csv; the name of its folder."),
    ] = None,
    date: Annotated[
        str | None, typer.Option("--date", help="The date of its prices; that of the file.")
    ] = None,
    reset: Annotated[
        bool, typer.Option("--reset", help="Go back to the prices that ship.")
    ] = False,
) -> None:
    """Get newer prices, from a file or from the network.

    They are kept in your folder of settings, and replace the older offers of the same providers.

    \b
    wavecast prices update
    wavecast prices update my-prices.toml
    wavecast prices update aws/vms.csv --date 2026-11-01
    """
    if reset:
        user_prices().unlink(missing_ok=True)
        print_text("the prices that ship are used")
        return
    newer = _from_file(file, provider, date) if file is not None else _from_network(provider)
    write_prices(user_prices(), price_book().renewed(newer))
    names = ", ".join(newer.providers())
    print_text(f"{len(newer.offers)} offers of {names}, kept in {user_prices()}")


def _from_file(file: Path, provider: str | None, date: str | None) -> PriceBook:
    try:
        day = None if date is None else datetime.date.fromisoformat(date)
    except ValueError:
        raise InvalidInput(f"--date is a date such as 2026-11-01, not {date!r}") from None
    if file.suffix.lower() == ".csv":
        return read_catalogue(file, provider, day)
    if provider is not None or date is not None:
        raise InvalidInput("--provider and --date are for FILE.csv; a table of prices says both")
    return read_prices(file)


def _from_network(provider: str | None) -> PriceBook:
    """The catalogues of the providers, or of one.

    Raises:
        InvalidInput: none of them could be read.
    """
    if provider is not None and provider not in SKYPILOT_PROVIDERS:
        raise InvalidInput(
            f'no catalogue of "{provider}" is known; providers: {", ".join(SKYPILOT_PROVIDERS)}'
        )
    books, reasons = [], []
    for name in (provider,) if provider else SKYPILOT_PROVIDERS:
        try:
            with waiting(f"reading the prices of {name}"):
                books.append(catalogue_of(_fetched(name), name, today()))
        except (OSError, urllib.error.URLError, ValueError) as error:
            reasons.append(f"{name}: {getattr(error, 'reason', None) or error}")
            if not books and len(reasons) >= 2:
                break  # there is no network
        except InvalidInput as error:
            reasons.append(f"{name}: {error}")
    if not books:
        raise InvalidInput(
            f"the price catalogue cannot be reached ({reasons[0]}); the prices stay as they are. "
            "Without a network, give a file: wavecast prices update FILE"
        )
    warn(f"the prices stay as they are of {reason}" for reason in reasons)
    return _joined(books)


def _joined(books: Iterable[PriceBook]) -> PriceBook:
    first, *others = books
    for book in others:
        first = first.renewed(book)
    return first


def _fetched(provider: str) -> str:
    request = urllib.request.Request(f"{SKYPILOT}/{provider}/vms.csv")
    with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
        data = answer.read(_LARGEST_BYTES + 1)
    if len(data) > _LARGEST_BYTES:
        raise ValueError("the catalogue is larger than 64 MiB")
    return str(data, "utf-8")

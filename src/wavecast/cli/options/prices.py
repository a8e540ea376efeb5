"""The options about prices, which several commands share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

import wavecast
from wavecast.cli.options.groups import option_group
from wavecast.errors import InvalidInput
from wavecast.hardware.devices import Device
from wavecast.planning.cost import Purchase, TrainingPlan
from wavecast.planning.prices import (
    Price,
    PriceBook,
    PriceFilter,
    is_money,
    price_book,
    read_prices,
    today,
)
from wavecast.reading import seconds_of
from wavecast.targets.sources import units_of
from wavecast.targets.targets import Target

YOURS = "yours"
"""The provider of a price that was given on the command line."""


@dataclass(frozen=True)
class PriceOptions:
    """The options as the user gave them."""

    price: list[str] | None = None
    prices: Path | None = None
    providers: str | None = None
    spot: bool = False
    stale: bool = False
    buy: list[str] | None = None
    lifetime_years: float = 4.0
    utilisation: float = 0.5
    power_price: float = 0.0

    def book(
        self, gpus: Sequence[Device] = (), setup: str | None = None, *, only_rented: bool = False
    ) -> PriceBook:
        """The prices to use.

        Args:
            gpus: the GPUs that a price without a name is for.
            setup: the published setup whose prices are used; None for today's.
            only_rented: whether bought GPUs are no offers, because rent is compared with them.

        Raises:
            InvalidInput: an option is malformed, or names a provider without offers.
        """
        self._refuse_without_purchase()
        if self.prices is not None and setup is not None:
            raise InvalidInput(f"--setup {setup} has its own prices; leave out --prices")
        book = price_book(setup) if self.prices is None else read_prices(self.prices)
        own = [*self._stated(gpus), *(() if only_rented else self._bought(gpus))]
        return book.with_offers(own).looking_at(self._which(book))

    def _refuse_without_purchase(self) -> None:
        """Raise InvalidInput for options of bought GPUs where none is bought."""
        for name in ("lifetime_years", "utilisation", "power_price"):
            option = f"--{name.replace('_', '-')}"
            if not self.buy and getattr(self, name) != getattr(NO_PRICES, name):
                raise InvalidInput(f"{option} is for bought GPUs; add --buy GPU=USD, or leave it")

    def _which(self, book: PriceBook) -> PriceFilter:
        names = tuple(name.strip().lower() for name in (self.providers or "").split(",") if name)
        known = {name.lower() for name in book.providers()}
        for name in names:
            if name not in known:
                raise InvalidInput(
                    f'no offer of "{name}" is known; providers: {", ".join(sorted(known))}'
                )
        own = (YOURS, "bought") if names else ()
        return PriceFilter((*names, *own), self.spot, self.stale)

    def _stated(self, gpus: Sequence[Device]) -> Iterator[Price]:
        for gpu, usd in _amounts(self.price, "--price", gpus):
            if not is_money(usd):
                raise InvalidInput(f"--price {usd:g} cannot be the price of an hour in USD")
            yield from _in_every_size(Price(gpu.id, usd, YOURS, "", today()))

    def purchases(self, gpus: Sequence[Device]) -> dict[str, Purchase]:
        """The GPUs that may be bought, by their ids."""
        return {
            gpu.id: Purchase(usd, self.lifetime_years, self.utilisation, self.power_price)
            for gpu, usd in _amounts(self.buy, "--buy", gpus)
        }

    def _bought(self, gpus: Sequence[Device]) -> Iterator[Price]:
        for name, purchase in self.purchases(gpus).items():
            bought = purchase.offer(wavecast.device(name), today())
            yield from _in_every_size(bought)


def _in_every_size(offer: Price) -> Iterator[Price]:
    """The offer for machines of all usual sizes: a price of yours holds for any number of GPUs."""
    return (replace(offer, gpus=gpus) for gpus in (1, 2, 4, 8))


def _amounts(
    texts: Sequence[str] | None, option: str, gpus: Sequence[Device]
) -> Iterator[tuple[Device, float]]:
    """GPUs with amounts of money: of `GPU=USD`, or of `USD` for all GPUs."""
    for text in texts or ():
        name, _, number = text.rpartition("=")
        try:
            usd = float(number)
        except ValueError:
            raise InvalidInput(
                f"{option} {text}: {number!r} is no number; write GPU=USD, as in l4=0.50"
            ) from None
        if not name and not gpus:
            raise InvalidInput(f"{option} {text} names no GPU; write GPU=USD, as in l4=0.50")
        yield from ((gpu, usd) for gpu in ([wavecast.device(name)] if name else gpus))


NO_PRICES = PriceOptions()

price_options = option_group(
    "pricing",
    PriceOptions,
    {
        "price": "Your price of an hour in USD, as GPU=USD, or USD for all GPUs; repeat for more.",
        "prices": "Your own table of prices (FILE.toml).",
        "providers": "Only offers of these providers, as in aws,gcp.",
        "spot": "Also offers of machines that may be taken away at any time.",
        "stale": "Also offers that were old when the table was made.",
        "buy": "You buy the GPU, for so many USD with its share of the machine: GPU=USD.",
        "lifetime_years": "How long a bought GPU is used.",
        "utilisation": "The share of that time in which it trains.",
        "power_price": "USD for a kilowatt-hour, for bought GPUs.",
    },
    "Prices",
)
"""A decorator that gives a command the options about prices, as its parameter `pricing`."""


# The options of a whole training, which several commands share: epochs, tokens, checkpoints.


LENGTHS = ("epochs", "samples", "tokens", "iterations")


@dataclass(frozen=True)
class TrainingOptions:
    """The options as the user gave them."""

    epochs: float | None = None
    samples: float | None = None
    tokens: float | None = None
    iterations: float | None = None
    dataset_samples: float | None = None
    sample_tokens: float | None = None
    global_batch: int | None = None
    validation_samples: float | None = None
    validation_time: str | None = None
    validation_every: float | None = None
    checkpoint_time: str | None = None
    checkpoint_every: float | None = None
    startup_time: str | None = None

    def plan(self, target: Target | None = None) -> TrainingPlan | None:
        """The training; None if no option says how long it is.

        Args:
            target: the step. Samples are those of its batch: sequences, also where the step counts
                tokens.

        Raises:
            InvalidInput: options contradict each other, or one is missing.
        """
        given = [field.name for field in fields(self) if getattr(self, field.name) is not None]
        lengths = [_option(name) for name in given if name in LENGTHS]
        if len(lengths) > 1:
            raise InvalidInput(f"{' and '.join(lengths)} both say how long the training is")
        if not lengths:
            if given:
                raise InvalidInput(
                    f"{_option(given[0])} is for a whole training; say how long it is with one of "
                    f"{', '.join(map(_option, LENGTHS))}"
                )
            return None
        each = 1 if target is None else units_of(target)
        sequence = None if target is None else target.options.seq
        batch = self.global_batch
        return TrainingPlan(
            iterations=self.iterations,
            samples=None if self.samples is None else self.samples * each,
            tokens=self.tokens,
            epochs=self.epochs,
            dataset_samples=None if self.dataset_samples is None else self.dataset_samples * each,
            sample_tokens=self.sample_tokens or sequence,
            global_batch=None if batch is None else batch * each,
            validation_s=self._seconds("validation_time"),
            validation_samples=(self.validation_samples or 0.0) * each,
            validation_every=self.validation_every,
            checkpoint_s=self._seconds("checkpoint_time"),
            checkpoint_every=self.checkpoint_every,
            startup_s=self._seconds("startup_time"),
        )

    def _seconds(self, name: str) -> float:
        text = getattr(self, name)
        return 0.0 if text is None else seconds_of(text, _option(name))


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")


NO_TRAINING = TrainingOptions()

training_options = option_group(
    "training",
    TrainingOptions,
    {
        "epochs": "The epochs of the training; needs --dataset-samples.",
        "samples": "Or the samples that it sees in all.",
        "tokens": "Or the tokens that it sees in all.",
        "iterations": "Or its optimizer steps.",
        "dataset_samples": "The samples of an epoch.",
        "sample_tokens": "The tokens of a sample, for --tokens; --seq says it, too.",
        "global_batch": "The samples of one optimizer step on all GPUs; gradients are accumulated.",
        "validation_samples": "The samples of one validation, whose forward passes are predicted.",
        "validation_time": "Or the time of one validation, as in 5min.",
        "validation_every": "The steps between validations; once in an epoch by default.",
        "checkpoint_time": "How long one checkpoint stops the training, as in 30s.",
        "checkpoint_every": "The steps between checkpoints; once in an epoch by default.",
        "startup_time": "The time before the first step.",
    },
    "A whole training",
)
"""A decorator that gives a command the options of a training, as its parameter `training`."""

"""One test over many things: properties of all GPUs, all pages, all readers.

pytest's parametrize makes a test of each, which costs more than the test where there are hundreds.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

import pytest

Test = Callable[..., None]
Decorator = Callable[[Test], Test]


def over(name: str, things: Iterable[Any], called: Callable[[Any], object] = str) -> Decorator:
    """A decorator that runs a test for each thing and lists all that fail.

    Args:
        name: the argument of the test that takes a thing.
        things: what to run the test for.
        called: the name of a thing in the list of failures.
    """
    every = list(things)
    assert every, f"there is no {name} to test"

    def decorate(test: Test) -> Test:
        def run(*args: Any, **kwargs: Any) -> None:
            failures = {}
            for thing in every:
                try:
                    test(*args, **{**kwargs, name: thing})
                except Exception as error:  # an error of one thing must not hide the others
                    failures[str(called(thing))] = error
            if failures:
                lines = (f"{thing}: {error!r}" for thing, error in failures.items())
                first = next(iter(failures.values()))
                raise AssertionError("\n".join(lines)) from first

        run.__dict__.update(test.__dict__)  # the marks of other parameters
        signature = inspect.signature(test)
        kept = [p for p in signature.parameters.values() if p.name != name]
        run.__name__, run.__doc__, run.__module__ = test.__name__, test.__doc__, test.__module__
        run.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]
        return run

    return decorate


def more(*things: Any) -> list[Any]:
    """Further parameters of a test, which show at length what the others show in short."""
    return [pytest.param(thing, marks=pytest.mark.slow) for thing in things]

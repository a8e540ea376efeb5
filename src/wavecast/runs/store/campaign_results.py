"""What campaigns found out, in a run store: each task has one result, however often it ran."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, select
from sqlalchemy.dialects import postgresql, sqlite

from wavecast.errors import InvalidInput
from wavecast.runs.run import Run, check, identity
from wavecast.runs.store import database
from wavecast.runs.store.store import RunStore, insert


@dataclass(frozen=True)
class TaskResult:
    """The answer to one task of a campaign."""

    task: str
    """The id of the task: a hash of what it asks for."""
    kind: str
    question: Mapping[str, Any]
    answer: Mapping[str, Any]
    node: str = ""
    """Where it ran."""
    seconds: float = 0.0
    """How long it took there."""
    ended_s: float = 0.0
    """When it ended, in seconds since 1970."""
    runs: tuple[Run, ...] = field(default=(), compare=False)
    """The runs that it measured; they are stored with it."""


@dataclass(frozen=True)
class FailedAttempt:
    """An attempt at a task that gave no answer."""

    task: str
    node: str
    error: str


class CampaignResults:
    """The results of one campaign in a run store.

    Args:
        name: the name of the campaign.
    """

    def __init__(self, store: RunStore, name: str) -> None:
        self._store, self.name = store, name

    def keep_file(self, text: str) -> None:
        """Keep the file of the campaign, so that it can be continued without it."""
        with self._store.writing() as connection:
            table = database.campaigns
            connection.execute(table.delete().where(table.c.name == self.name))
            connection.execute(table.insert().values(name=self.name, file=text))

    def file(self) -> str:
        """The file of the campaign.

        Raises:
            InvalidInput: the store has no campaign of this name.
        """
        table = database.campaigns
        with self._store.reading() as connection:
            chosen = select(table.c.file).where(table.c.name == self.name)
            text = connection.execute(chosen).scalar_one_or_none()
        if text is None:
            known = ", ".join(campaign_names(self._store)) or "none"
            raise InvalidInput(
                f"{self._store.name} has no campaign {self.name}; it has {known}. "
                "wavecast campaign run FILE begins one"
            )
        return str(text)

    def done(self) -> set[str]:
        """The ids of the tasks that have a result."""
        table = database.results
        with self._store.reading() as connection:
            chosen = select(table.c.task).where(table.c.campaign == self.name)
            return set(connection.execute(chosen).scalars())

    def add(self, results: Sequence[TaskResult], failed: Sequence[FailedAttempt] = ()) -> int:
        """Store results with their runs, and failed attempts, in one transaction.

        A task that has a result keeps it; the new one and its runs are left out.

        Returns:
            How many results were new.
        """
        for run in (run for result in results for run in result.runs):
            check(run)
        new = 0
        with self._store.writing() as connection:
            for result in results:
                if self._insert(connection, result):
                    insert(connection, [(identity(run), run) for run in result.runs])
                    new += 1
            for attempt in failed:
                row = {"task": attempt.task, "node": attempt.node, "error": attempt.error[:1000]}
                connection.execute(database.failures.insert().values(campaign=self.name, **row))
        return new

    def _insert(self, connection: Connection, result: TaskResult) -> bool:
        dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
        statement = (
            dialect.insert(database.results)
            .on_conflict_do_nothing(index_elements=["campaign", "task"])
            .returning(database.results.c.number)
        )
        row = {
            "campaign": self.name,
            "task": result.task,
            "kind": result.kind,
            "question": json.dumps(result.question, allow_nan=False),
            "answer": json.dumps(result.answer, allow_nan=False),
            "node": result.node,
            "seconds": result.seconds,
            "ended_s": result.ended_s,
        }
        return connection.execute(statement, row).first() is not None

    def results(self) -> Iterator[TaskResult]:
        """The results, in the order in which they came."""
        table = database.results
        names = ("task", "kind", "question", "answer", "node", "seconds", "ended_s")
        chosen = select(*(table.c[name] for name in names)).where(table.c.campaign == self.name)
        with self._store.reading() as connection:
            for row in connection.execute(chosen.order_by(table.c.number)):
                values = dict(zip(names, row, strict=True))
                read = {name: json.loads(values[name]) for name in ("question", "answer")}
                yield TaskResult(**(values | read))

    def failed(self) -> list[FailedAttempt]:
        """The failed attempts, the oldest first."""
        table = database.failures
        chosen = select(table.c.task, table.c.node, table.c.error)
        with self._store.reading() as connection:
            rows = connection.execute(
                chosen.where(table.c.campaign == self.name).order_by(table.c.number)
            )
            return [FailedAttempt(*row) for row in rows]


def campaign_names(store: RunStore) -> tuple[str, ...]:
    """The names of the campaigns of a store."""
    table = database.campaigns
    with store.reading() as connection:
        return tuple(connection.execute(select(table.c.name).order_by(table.c.name)).scalars())

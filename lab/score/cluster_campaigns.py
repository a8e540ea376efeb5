"""Is anything lost or stored twice if nodes of a Ray cluster are killed? How fast is it?

    python -m lab score cluster_campaigns [--kills 10] [--only NAME ...] [--write]

Needs ray, psycopg and PostgreSQL (`apt install postgresql`). Starts a cluster of four nodes on this
machine, with a core each, and writes the tables of docs/appendix/campaigns.md.
"""

from __future__ import annotations

import os
import random
import resource
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from lab import needs, pages
from lab.pages import heading
from wavecast.campaigns.campaign_files import Campaign, make_campaign
from wavecast.campaigns.progress import CampaignRun
from wavecast.campaigns.ray_workers import RayWorkers
from wavecast.campaigns.running import ThisProcess, run_campaign
from wavecast.runs.store.campaign_results import CampaignResults
from wavecast.runs.store.store import RunStore

PAGE = pages.APPENDIX / "campaigns.md"
NODES = 4
_SEED = 39
SHORT = """
[[layers]]
kind = "linear"
count = 500
gpus = ["cpu"]
"""
REAL = """
[[runs]]
models = ["a3c", "dcgan"]
batches = [1, 2, 3, 4, 6]
iterations = [1, 2, 3, 4, 5]
gpus = ["cpu"]
"""
PREDICTIONS = """
[[predict]]
targets = ["a3c", "dcgan", "alexnet", "graphsage", "dlrm"]
batches = [2, 4, 8, 16, 24, 32, 48, 64]
precisions = ["fp32", "bf16"]
gpus = ["all"]
"""


@dataclass
class Nodes:
    """Four nodes on this machine; one that is killed is replaced after a while."""

    kills: int = 0
    killed: list[float] = field(default_factory=list)
    cluster: Any = None

    def __enter__(self) -> Nodes:
        from ray.cluster_utils import Cluster

        self.cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
        self.workers = [self._new() for _ in range(NODES)]
        return self

    def __exit__(self, *_: object) -> None:
        self.cluster.shutdown()

    def _new(self) -> Any:
        return self.cluster.add_node(num_cpus=1, resources={"cpu": 1})

    def kill_some(self, running: Future[CampaignRun], progress: Callable[[], int]) -> None:
        """Kill nodes at random, each after some results more, and start others instead.

        This must be the main thread: Ray sets the handlers of signals when a node starts.
        """
        draw = random.Random(_SEED)
        for _ in range(self.kills):
            goal = progress() + draw.randint(5, 45)
            while progress() < goal:
                if running.done():
                    return
                time.sleep(0.2)
            victim = self.workers.pop(draw.randrange(len(self.workers)))
            self.cluster.remove_node(victim, allow_graceful=False)
            self.killed.append(time.monotonic())
            self.workers.append(self._new())


@contextmanager
def store_in_postgresql() -> Iterator[str]:
    """The URL of an empty database of a server that is started for this."""
    from postgres_server import Server, programs

    folder = programs()
    if folder is None:
        raise SystemExit("PostgreSQL is not installed: apt install postgresql")
    server = Server(folder)
    try:
        server.start()
        yield server.new_database()
    finally:
        server.close()


def kills(number: int) -> Iterator[str]:
    """500 short and 50 real measurements on four nodes, which are killed at random."""
    campaign = make_campaign(SHORT + REAL, "kills")
    with store_in_postgresql() as place, Nodes(number) as nodes, RunStore(place) as store:
        results = CampaignResults(store, campaign.name)
        done: list[int] = [0]
        workers = RayWorkers(nodes.cluster.address)
        with ThreadPoolExecutor(1) as thread:
            run = partial(
                run_campaign, campaign, results, workers, progress=lambda now: done.append(now.done)
            )
            running = thread.submit(run)
            nodes.kill_some(running, lambda: done[-1])
            outcome = running.result()
        workers.close()
        rows = list(results.results())
        runs = list(store.runs())
        attempts = len(results.failed())
    yield from heading("what | number")
    yield f"| tasks: 500 layers and 50 whole runs | {outcome.tasks} |"
    yield f"| nodes killed | {len(nodes.killed)} |"
    yield f"| bundles lost with them, and given away again | {outcome.lost} |"
    yield f"| attempts that failed or were lost | {attempts} |"
    yield f"| results in the store | {len(rows)} |"
    yield f"| tasks without a result | {outcome.tasks - len({row.task for row in rows})} |"
    yield f"| tasks with two results | {len(rows) - len({row.task for row in rows})} |"
    yield f"| whole runs in the run store (50 expected) | {len(runs)} |"
    yield f"| nodes that gave results | {len({row.node for row in rows})} |"
    yield f"| minutes | {outcome.seconds / 60:.1f} |"


def speed(_: int) -> Iterator[str]:
    """10,000 predictions on four nodes, and in one process."""
    campaign = make_campaign(PREDICTIONS, "predictions")
    campaign = Campaign(campaign.name, campaign.tasks[:10_000], campaign.file)
    folder = Path(tempfile.mkdtemp())
    yield from heading("how | predictions | wall s | predictions/s | load before")
    with Nodes() as nodes, RunStore(folder / "ray.sqlite") as store:
        load = os.getloadavg()[0]
        workers = RayWorkers(nodes.cluster.address)
        there = run_campaign(campaign, CampaignResults(store, campaign.name), workers)
        workers.close()
        yield _speed(f"{NODES} nodes of a core each", there, load)
    load, began = os.getloadavg()[0], resource.getrusage(resource.RUSAGE_SELF).ru_utime
    with RunStore(folder / "here.sqlite") as store:
        here = run_campaign(campaign, CampaignResults(store, campaign.name), ThisProcess())
    yield _speed("one process", here, load)
    used = resource.getrusage(resource.RUSAGE_SELF).ru_utime - began
    yield ""
    yield (
        f"Speed-up: {here.seconds / there.seconds:.2f}. The one process used {used:.0f} s of a "
        f"core in {here.seconds:.0f} s."
    )


def _speed(how: str, run: CampaignRun, load: float) -> str:
    pace = run.new / run.seconds
    return f"| {how} | {run.new} | {run.seconds:.0f} | {pace:.0f} | {load:.1f} |"


TABLES: dict[str, Callable[[int], Iterator[str]]] = {"kills": kills, "speed": speed}


def main(given: Sequence[str] = ()) -> None:
    """Print the tables, and write them into the page."""
    parser = needs.parser(__doc__)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--only", nargs="+", choices=TABLES, default=list(TABLES))
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args(given)
    for name in options.only:
        text = "\n".join(TABLES[name](options.kills))
        print(f"# {name}\n\n{text}\n", flush=True)
        if options.write:
            pages.write(PAGE, f"begin: python -m lab score cluster_campaigns {name!r}", text)

"""Plans over the API: the plan, its report, and what is refused."""

from __future__ import annotations

import pytest

pytest.importorskip("ortools", reason="needs wavecast[planning]")
pytest.importorskip("fastapi", reason="needs wavecast[server]")

from fastapi.testclient import TestClient

JOBS = """
[[jobs]]
name = "nightly"
hours = { "l4" = 9, "2 x l4" = 5 }
due_in = "12h"
runs = 2

[[cluster.pools]]
gpu = "l4"
gpus = 2
usd_per_hour = 0.6
"""


def test_a_plan_is_made_kept_and_downloaded(client: TestClient) -> None:
    made = client.post("/api/plans", json={"jobs": JOBS})
    assert made.status_code == 200, made.text
    plan = made.json()
    assert "2 jobs on 2 GPUs end after 9.00 h and cost $10.80" in plan["verdict"]
    assert plan["meets_deadlines"]
    assert any("When each job runs" in section for section in plan["sections"])
    assert any("cheapest of 2 ways" in section for section in plan["sections"])
    assert client.get(f"/api/plans/{plan['id']}").json() == plan
    report = client.get(f"/api/plans/{plan['id']}/report")
    assert "attachment" in report.headers["content-disposition"]
    assert "<h2" in report.text
    page = client.get(f"/plan/{plan['id']}")
    assert (page.status_code, "/static/plan.js" in page.text) == (200, True)
    assert client.get(f"/api/plans/{'0' * 32}").status_code == 404


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("runs = 2", "rns = 2", "jobs[1].rns is not a key of a job"),
        ("runs = 2", "runs = x", "at line 6"),
        ("runs = 2", "runs = 300", "there are 300 jobs"),
        ("hours = {", 'target = "train.py:f" #', "jobs[1].target: this is not a name"),
        ("hours = {", 'target = "resnet51" #', "jobs[1].target: no suite model"),
        ('gpu = "l4"', 'gpu = "/etc/gpu.toml"', "cluster.pools[1].gpu: this is not a name"),
        (
            'gpu = "l4"',
            'gpu = "l4"\nlinks = "/a.toml"',
            "cluster.pools[1].links: this is not a name",
        ),
        ("[[cluster.pools]]", "[[clusters]]", "has no cluster"),
        ("gpus = 2", "gpus = 20_000", "20,000 GPUs; at most 10,000"),
        ("gpus = 2", "gpus = 1e6", "1,000,000 GPUs in machines of 8; at most 10,000 machines"),
        ("runs = 2", 'layouts = "all"', 'jobs[1].layouts: "data" only here'),
        ('hours = { "l4" = 9, "2 x l4" = 5 }', "hours = { l4 = 1e19 }", "more than 100 years"),
        ('due_in = "12h"', "due_in = 1e12", "due after more than 100 years"),
    ],
)
def test_wrong_jobs_are_refused_with_their_key(
    client: TestClient, old: str, new: str, told: str
) -> None:
    refused = client.post("/api/plans", json={"jobs": JOBS.replace(old, new, 1)})
    assert refused.status_code == 422
    assert told in refused.json()["error"]["message"]


def test_missed_deadlines_are_explained(client: TestClient) -> None:
    late = client.post("/api/plans", json={"jobs": JOBS.replace("12h", "2h")}).json()
    assert not late["meets_deadlines"]
    assert any("cannot meet its deadline even alone" in section for section in late["sections"])

"""`wavecast plan`, `simulate` and `capacity`: files, answers and exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from made import step
from shell import run

import wavecast
from wavecast.targets.targets import parse_parallel

pytest.importorskip("ortools")

JOBS = """
[[jobs]]
name = "traced"
target = "step.json.gz"
iterations = 5e6
runs = 2

[[jobs]]
name = "measured"
hours = { "l4" = 10, "4 x l4" = 3, "t4" = 20 }
deadline = "24h"
priority = 2

[cluster]
power_limit_kw = 5
[[cluster.pools]]
gpu = "l4"
gpus = 8
usd_per_hour = 0.6
[[cluster.pools]]
gpu = "t4"
gpus = 4
usd_per_hour = 0.2
"""


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    step().save(tmp_path / "step.json.gz")
    path = tmp_path / "jobs.toml"
    path.write_text(JOBS)
    return path


HOURS = """
[[jobs]]
name = "measured"
hours = { "l4" = 10 }
runs = 3
deadline = "24h"
[cluster]
power_limit_kw = LIMIT
[[cluster.pools]]
gpu = "l4"
gpus = 2
available = WINDOWS
"""


def test_hours_and_power_that_leave_no_room_are_one_line(jobs: Path) -> None:
    def planned(limit: str, windows: str) -> tuple[int, str]:
        jobs.write_text(HOURS.replace("LIMIT", limit).replace("WINDOWS", windows))
        done = run("plan", jobs, "--time-limit", "1s")
        assert "Traceback" not in done.err
        return done.code, " ".join((done.err + done.out).split())

    assert planned("5", '[["0h", "10h"], ["10h", "20h"]]')[0] == 0  # windows that touch are one
    code, said = planned("5", '[["0h", "8h"], ["9h", "15h"]]')
    assert code == 2
    assert "takes 10.0 h at least (on l4), and no pool is available for longer than 8.0 h" in said
    code, said = planned("5", '[["0h", "15h"]]')
    assert code == 2
    assert "What would help: l4 at all hours from 0 to 20.0 h; or one more l4" in said
    assert "can run nowhere: l4: the pool has no room or power" in planned("0.05", "[]")[1]
    code, said = planned("0.1", "[]")
    assert code == 1
    assert "also be met with a power limit of 0.15 kW for the cluster (0.10 now)" in said


def test_a_plan_has_gpus_times_and_reasons(jobs: Path) -> None:
    done = run("plan", jobs, "--time-limit", "3s", "--html", "p.html")
    assert done.code == 0, done.err
    assert "1 of 1 deadlines are met. No plan has less cost" in done.out
    assert "cheapest of 3 ways" in done.out
    assert "<h2" in (jobs.parent / "p.html").read_text()
    found = json.loads(run("plan", jobs, "--by", "makespan", "--json").out)
    measured = next(row for row in found["jobs"] if row["job"] == "measured")
    assert (measured["gpus"], measured["pool"]) == (4, "l4")
    assert found["makespan_s"] == pytest.approx(3 * 3600)
    assert found["gap"] == 0


SPREAD = """
[[jobs]]
name = "spread"
target = "step.json.gz"
iterations = 5e6
counts = [8]
[cluster]
"""


@pytest.mark.parametrize(
    ("pool", "slower"),
    [
        ("gpus_per_node = 8", False),
        ("gpus_per_node = 4", True),
        ('links = "pcie-4"', True),
    ],
)
def test_jobs_on_several_gpus_know_the_links_of_their_pool(
    jobs: Path, pool: str, slower: bool
) -> None:
    usual = '[[cluster.pools]]\nname = "usual"\ngpu = "a100-pcie-80gb"\ngpus = 8\n'
    other = f'[[cluster.pools]]\nname = "other"\ngpu = "a100-pcie-80gb"\ngpus = 8\n{pool}\n'
    times = []
    for pools in (usual, other, usual + other):
        jobs.write_text(f"{SPREAD}{pools}")
        done = run("plan", jobs, "--by", "makespan", "--json")
        assert done.code == 0, done.err
        times.append(json.loads(done.out)["makespan_s"])
    assert (times[1] > 1.01 * times[0]) == slower
    assert times[2] == pytest.approx(min(times[:2]))  # each pool has its own times


def test_machines_that_no_gpu_is_known_to_be_in_want_a_name(jobs: Path) -> None:
    pool = '[[cluster.pools]]\ngpu = "a100-pcie-80gb"\ngpus = 32\ngpus_per_node = 16\n'
    jobs.write_text(f"{SPREAD}{pool}")
    done = run("plan", jobs)
    assert done.code == 2
    assert "pool a100-pcie-80gb: gpus_per_node is 16, and a machine of pcie-8 has 8" in done.err


def test_missed_deadlines_have_exit_code_1_and_wrong_files_2(jobs: Path) -> None:
    jobs.write_text(JOBS.replace('"24h"', '"2h"'))
    done = run("plan", jobs, "--time-limit", "2s")
    assert done.code == 1
    assert "measured cannot meet its deadline even alone" in done.out
    assert "0 of 1 deadlines are met. " in done.out  # whose draws are in time is no news then
    jobs.write_text(JOBS.replace("priority = 2", "prority = 2"))
    done = run("plan", jobs)
    assert done.code == 2
    assert 'jobs[2].prority is not a key of a job; did you mean "priority"?' in done.err


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("gpus = 8", "gpus = 0", "cluster.pools[1].gpus must be a positive number"),
        ("gpus = 8", "", "cluster.pools[1].gpus is missing"),
        ("gpus = 8", 'gpus = 8\nlinks = "nowhere"', 'pools[1].links: unknown cluster "nowhere"'),
        ('"24h"', '"soon"', "jobs[2].deadline is a time such as 48h"),
        ('"4 x l4"', '"0 x l4"', "jobs[2].hours: '0 x l4' must have 1 to 1,000,000 GPUs"),
        ('"4 x l4"', f'"{"9" * 5000} x l4"', "must have 1 to 1,000,000 GPUs"),
        ("iterations = 5e6", "", "jobs[1] (traced): say how long it is"),
        ('{ "l4" = 10', '{ "l4" = -1', "jobs[2].hours.l4 must be above 0"),
        ("runs = 2", 'gpus = ["h100"]', "job traced names h100, which the cluster does not have"),
        ("runs = 2", "runs = 2.5", "jobs[1].runs must be a whole number"),
        ("runs = 2", "options = 3", "jobs[1].options must be a table such as { qlora = true"),
        ("runs = 2", "options = { qlra = true }", "options.qlra is not an option of a model"),
    ],
)
def test_wrong_values_are_named_with_file_and_key(
    jobs: Path, old: str, new: str, told: str
) -> None:
    jobs.write_text(JOBS.replace(old, new, 1))
    done = run("plan", jobs)
    assert done.code == 2
    assert f"{jobs}: " in done.err
    assert told in done.err


def test_tables_of_jobs_and_clusters_are_simulated(tmp_path: Path) -> None:
    trace = tmp_path / "jobs.csv"
    trace.write_text("job_id,submit_s,duration_s,n_gpu\na,0,3600,1\nb,10,60,2\nc,20,,1\n")
    cluster = tmp_path / "cluster.csv"
    cluster.write_text("gpu,gpus,usd_per_hour\nv100-sxm-16gb,2,1.0\n")
    done = run(
        *("simulate", trace, "--cluster", cluster, "--policy", "fifo", "--policy", "shortest"),
        "--json",
    )
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert [row["jobs"] for row in found["policies"]] == [2, 2]
    assert found["policies"][0]["makespan_s"] == pytest.approx(3660)
    assert "there is no policy" in run("simulate", trace, "--cluster", cluster, "--policy", "x").err


LAYOUTS = """
[[jobs]]
name = "decoder"
target = "TRACE"
iterations = 1e6
counts = [2]
layouts = "all"
[[cluster.pools]]
gpu = "t4"
gpus = 4
"""


def test_the_layout_is_chosen_with_the_gpus(jobs: Path) -> None:
    path = Path(__file__).parents[1] / "samples" / "steps" / "decoder.json.gz"
    text = LAYOUTS.replace("TRACE", str(path))
    found = {}
    for layouts in ("data", "all"):
        jobs.write_text(text.replace('"all"', f'"{layouts}"'))
        done = run("plan", jobs, "--time-limit", "0", "--json")
        assert done.code == 0, done.err
        [found[layouts]] = json.loads(done.out)["jobs"]
    assert found["data"]["layout"] == "data=2"
    assert found["all"]["end_s"] < found["data"]["end_s"]
    alone = wavecast.predict(
        wavecast.load_trace(path), "t4", parallel=parse_parallel(found["all"]["layout"])
    )
    assert found["all"]["end_s"] == pytest.approx(1e6 * alone.seconds)
    jobs.write_text(text.replace('"all"', '"some"'))
    told = 'jobs[1].layouts must be "data" or "all", not \'some\''
    assert told in " ".join(run("plan", jobs).err.split())


@pytest.mark.parametrize(
    ("jobs_text", "cluster_text", "told"),
    [
        ("\rinf\na,0,60,1\n", "gpu,gpus\nl4,2\n", "has no column job_id"),
        ("job_id,submit_s,duration_s,n_gpu\na,0,60,1\n", "gpu\nl4\n", "has no column gpus"),
        ("job_id,submit_s,duration_s,n_gpu\na,0,60,1,8\n", "gpu,gpus\nl4,2\n", "line 2 has more"),
        (
            "job_id,submit_s,duration_s,n_gpu\na,0,60,1\n",
            "gpu,gpus,gpus_per_node\nl4,1000000,1\n",
            "at most 10,000 machines of a pool are planned",
        ),
        (f"job_id,submit_s,duration_s,n_gpu\n{'a' * 140_000},0,60,1\n", "gpu,gpus\nl4,2\n", "CSV"),
    ],
    ids=["odd line ends", "no column", "more cells", "many machines", "long cell"],
)
def test_odd_tables_are_refused_in_a_line(
    tmp_path: Path, jobs_text: str, cluster_text: str, told: str
) -> None:
    jobs, cluster = tmp_path / "jobs.csv", tmp_path / "cluster.csv"
    jobs.write_text(jobs_text, newline="")
    cluster.write_text(cluster_text)
    done = run("plan", jobs, "--cluster", cluster)
    assert done.code == 2
    assert told in " ".join(done.err.split())


def test_capacity_answers_and_compares_buying(jobs: Path) -> None:
    text = JOBS.replace("runs = 2", "runs_per_week = 30").replace("deadline", "due_in")
    text = text.replace("5e6", "1e5")
    jobs.write_text(text.replace("priority = 2", "runs_per_week = 2"))
    done = run("capacity", jobs, "--draws", "2", "--weeks", "1", "--buy", "l4=2500", "--json")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert found["best"]["in_time_low"] >= 0.95
    bought = {row["pool"]: row["even_weeks"] for row in found["purchases"]}
    assert bought.get("l4", 2500 / (0.6 * 168)) == pytest.approx(2500 / (0.6 * 168))
    jobs.write_text(text)
    done = run("capacity", jobs)
    assert (done.code, "job measured needs runs_per_week" in done.err) == (2, True)


def test_gpus_may_be_listed_and_rates_are_planned_for_a_week(jobs: Path) -> None:
    text, _, _ = JOBS.partition("[cluster]")
    jobs.write_text(text.replace("runs = 2", "runs_per_week = 2.5"))
    done = run("plan", jobs, "--cluster", "l4=8,t4=4", "--time-limit", "0s", "--json")
    assert done.code == 0, done.err
    assert len(json.loads(done.out)["jobs"]) == 3 + 1
    assert "or give them with --cluster" in run("plan", jobs).err
    done = run("plan", jobs, "--cluster", "l4=many")
    assert (done.code, "not 'l4=many'" in done.err) == (2, True)


def test_rent_is_that_of_offers_where_gpus_may_be_bought(jobs: Path) -> None:
    text = JOBS.replace("runs = 2", "runs_per_week = 3").replace("priority", "runs_per_week")
    text, _, _ = text.replace("5e6", "1e5").partition("[cluster]")
    jobs.write_text(text)
    asked = ("capacity", jobs, "--cluster", "l4=8", "--draws", "1", "--weeks", "1", "--json")
    rents = [
        json.loads(run(*asked, *more).out)["best"]["usd_per_week"]
        for more in ((), ("--buy", "l4=10"))
    ]
    assert rents[0] == rents[1]

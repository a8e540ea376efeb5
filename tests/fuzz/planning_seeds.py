"""Seeds of the fuzzers for what planning reads: jobs, prices, catalogues."""

from __future__ import annotations

from functools import cache

from fuzz.seeds import ROOT, Seed, one

from wavecast import files


@cache
def planned_jobs() -> list[Seed]:
    """The week of the example, without its predicted jobs, and a table of jobs."""
    text = (ROOT / "examples" / "twenty-jobs.toml").read_bytes()
    measured = text[text.index(b'[[jobs]]\nname = "nightly-tests"') :]
    table = b"job_id,submit_s,duration_s,n_gpu,deadline_s\na,0,60,1,\nb,5,3600,8,9000\n"
    return [one("jobs.toml", measured), one("jobs.csv", table)]


@cache
def plan_questions() -> list[Seed]:
    """Measured jobs with their cluster, as the web page sends them."""
    jobs = b'jobs = [{name = "a", hours = {l4 = 9, "2 x l4" = 5}, due_in = "12h", runs = 2}]\n'
    pools = b'[cluster]\npools = [{gpu = "l4", gpus = 2, usd_per_hour = 0.6}]\n'
    return [one("j.toml", jobs + pools)]


_CAMPAIGN = b"""name = "november"
attempts = 3
[[predict]]
targets = ["resnet50", "gpt2"]
batches = [8, 16]
precisions = ["bf16"]
gpus = ["l4", "all"]
parallel = ["", "data=8"]
[[layers]]
kind = "linear"
count = 10
gpus = ["l4"]
[[suite]]
models = ["resnet50"]
gpus = ["l4"]
[[design]]
models = ["alexnet"]
batches = [8, 16, 32, 64]
iterations = [100, 200, 500]
budget = "10min"
startup = 5
iteration = 0.02
sample = 0.002
gpus = ["l4"]
[[runs]]
models = ["alexnet"]
batches = [8, 16]
iterations = [100, 200]
gpus = ["l4"]
"""


@cache
def campaigns() -> list[Seed]:
    return [one("november.toml", _CAMPAIGN)]


@cache
def fleets() -> list[Seed]:
    """Tables of GPUs, and pools with all that they can say."""
    table = b"gpu,gpus,usd_per_hour,spot,name\nl4,16,0.6,no,a\nt4,4,0.2,yes,b\nmine,2,,,c\n"
    pools = b"""[cluster]
power_limit_kw = 20
[[cluster.pools]]
gpu = "l4"
gpus = 16
gpus_per_node = 8
links = "pcie-8"
power_limit_kw = 1
available = [["0h", "72h"], ["80h", "90h"]]
"""
    return [one("cluster.csv", table), one("cluster.toml", pools)]


@cache
def prices() -> list[Seed]:
    lines = files.shipped("prices.toml").read_bytes().splitlines(keepends=True)
    return [one("prices.toml", b"".join([*lines[:24], b"]\n"]))]


@cache
def catalogues() -> list[Seed]:
    head = b"InstanceType,AcceleratorName,AcceleratorCount,Price,Region,SpotPrice\n"
    rows = (
        b"g6.xlarge,L4,1,0.8,us-east-1,0.3\np5.48xlarge,H100,8,55,us-east-2,\n,T4,1,0.35,here,0.1\n"
    )
    table = (
        b"provider,accelerator,count,on_demand_usd_per_gpu_hour,data_date,spot_usd_per_gpu_hour\n"
        b"aws,L4,1,0.8,2026-08-22,0.3\nlambda,A10,2,1.29,2026-07-23,\n"
    )
    return [one("vms.csv", head + rows), one("prices.csv", table)]

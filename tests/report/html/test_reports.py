"""Whole pages: complete, self-contained, safe, and small enough."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser
from itertools import pairwise
from typing import Any

import pytest
from made import call, mm, relu, step, tensor, trace, view

import wavecast
from wavecast.analysis.profile import profile_measured, profile_predicted
from wavecast.report.html.documents import Report, document
from wavecast.report.html.reports import (
    layouts_report,
    prediction_report,
    scaling_report,
)
from wavecast.report.results.memory import memory_report
from wavecast.report.results.profiles import measured_profile_report, predicted_profile_report
from wavecast.traces.step import Kernel, Measurement, Op, Phase, Trace

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>{{style}}\x1b[2J\u202e"
MIB = 1 << 20


@cache
def _report() -> Report:
    gpus = ("a100-sxm-80gb", "l4", "t4")
    return prediction_report("two layers", [wavecast.predict(step(), gpu) for gpu in gpus])


def _data(page: str) -> dict[str, Any]:
    found = re.search(r'id="wavecast-data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    data: dict[str, Any] = json.loads(found[1])
    return data


class _Elements(HTMLParser):
    """All elements of a page, with their attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def named(self, *tags: str) -> list[dict[str, str | None]]:
        return [attributes for tag, attributes in self.found if tag in tags]


def test_a_page_answers_all_questions() -> None:
    report = _report()
    names = [section.identity for section in report.sections]
    assert names == ["comparison", "time", "timeline", "memory", "roofline", "method"]
    assert "<strong>a100-sxm-80gb</strong> is the fastest of 3" in report.verdict
    assert "most for the money" in report.verdict
    page = document(report)
    for part in ("mine.secret", "counted as 0 s", "learned", "samples/s", "the peak"):
        assert part in page
    assert len(_data(page)["subjects"]) == 3


def test_a_page_loads_nothing() -> None:
    elements = _Elements(document(_report()))
    loading = ("link", "img", "iframe", "object", "embed", "video", "audio", "source", "base")
    assert not elements.named(*loading)
    for _, attributes in elements.found:
        assert "src" not in attributes
        assert "style" not in attributes, "the policy would refuse it"
        assert not [name for name in attributes if name.startswith("on")]
        target = attributes.get("href")
        assert target is None or target.startswith("#")
    assert not re.search(r"\b(fetch|XMLHttpRequest|WebSocket|import)\b\s*\(", document(_report()))


def test_the_policy_allows_the_style_and_the_script_alone() -> None:
    page = document(_report())
    [policy] = [m["content"] for m in _Elements(page).named("meta") if "http-equiv" in m]
    assert policy is not None
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    for tag in ("style", "script"):
        content = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        [only] = content
        digest = base64.b64encode(hashlib.sha256(only.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy


def test_hostile_names_stay_text() -> None:
    calls = (call(mm(), module=HOSTILE), call(relu(8, 8), module=f"a.{HOSTILE}"))
    odd = replace(step(), calls=(*step().calls, *calls), notes=(HOSTILE,))
    page = document(prediction_report(HOSTILE, [wavecast.predict(odd, "t4")]))
    plain = document(prediction_report("plain", [wavecast.predict(step(), "t4")]))
    scripts = [_Elements(p).named("script", "img") for p in (page, plain)]
    assert len(scripts[0]) == len(scripts[1])
    assert "\x1b" not in page
    assert "\u202e" not in page
    assert page.count("{{style}}") >= 2, "what looks like a place in a template stays as it is"
    names = _data(page)["names"]
    assert any("\\x1b" in name for name in names)
    assert not any("\x1b" in name or "\u202e" in name for name in names)


def test_every_table_and_drawing_can_be_read_aloud() -> None:
    elements = _Elements(document(_report()))
    assert all(head.get("scope") for head in elements.named("th"))
    assert len(elements.named("caption")) == len(elements.named("table"))
    drawings = [a for a in elements.named("div") if a.get("role") == "img"]
    assert drawings
    assert all(drawing.get("aria-label") for drawing in drawings)
    headings = [int(tag[1]) for tag, _ in elements.found if re.fullmatch("h[1-6]", tag)]
    assert headings[0] == 1
    assert headings.count(1) == 1
    jumps = [b - a for a, b in pairwise(headings)]
    assert max(jumps) == 1, "no level is left out"
    assert {"main", "nav", "header", "footer"} <= {tag for tag, _ in elements.found}


def test_identities_are_unique() -> None:
    elements = _Elements(document(_report()))
    identities = [a["id"] for _, a in elements.found if "id" in a]
    assert len(identities) == len(set(identities))


def test_the_tree_of_modules_adds_up() -> None:
    prediction = wavecast.predict(step(), "t4")
    data = _data(document(prediction_report("step", [prediction])))
    names, [subject] = data["names"], data["subjects"].values()
    tree = subject["tree"]
    assert tree[1] == pytest.approx(prediction.gpu_s * 1e9, abs=2)
    top = {names[child[0]]: child for child in tree[4]}
    assert list(top) == ["(other)", "net", "(optimizer)"]
    assert sum(child[1] for child in tree[4]) == pytest.approx(tree[1], abs=5)
    assert [names[child[0]] for child in top["net"][4]] == ["0", "1", "2"]


def test_the_timeline_has_every_call() -> None:
    prediction = wavecast.predict(step(), "t4")
    data = _data(document(prediction_report("step", [prediction])))
    [subject] = data["subjects"].values()
    line = subject["timeline"]
    assert [row["name"] for row in line["rows"]][1:] == ["compute"]
    compute = line["rows"][1]
    assert len(compute["length"]) == int((prediction.call_s > 0).sum())
    total_s = sum(compute["length"]) * line["unit"]
    assert total_s == pytest.approx(prediction.gpu_s, rel=0.02)
    assert sum(line["module"][1::2]) == len(prediction.trace)


def _long_trace(calls: int) -> Trace:
    """A step of many calls of a few ops in hundreds of modules."""
    made = [
        call((mm(), relu(64, 64), view(8, 8))[index % 3], Phase.FORWARD, f"net.{index // 97}.part")
        for index in range(calls)
    ]
    return trace(*made, samples=8)


def test_a_step_of_a_hundred_thousand_calls_is_a_page_of_less_than_5_mib() -> None:
    long = _long_trace(100_000)
    page = document(prediction_report("long", [wavecast.predict(long, g) for g in ("t4", "l4")]))
    assert len(page.encode()) < 5 * MIB
    first, second = _data(page)["subjects"].values()
    assert first["timeline"]["rows"][0]["joined"] == 2
    assert second["timeline"] is None
    assert "left out to keep the page small" in page


def test_every_gpu_there_is_makes_a_page_of_less_than_5_mib() -> None:
    rows = [wavecast.predict(step(), gpu) for gpu in wavecast.devices()]
    page = document(prediction_report("all", rows))
    assert len(page.encode()) < 2 * MIB
    assert len(_data(page)["subjects"]) == 6
    assert page.count("<tr>") > 140


def test_what_does_not_fit_is_not_praised() -> None:
    large = step(state_bytes=1 << 29)
    rows = [wavecast.predict(large, gpu) for gpu in ("t4", "h200-sxm")]
    report = prediction_report("large", rows)
    assert "<strong>h200-sxm</strong> is the fastest" in report.verdict
    assert "does not fit on t4" in report.verdict
    alone = prediction_report("large", rows[:1])
    assert "does not fit on this GPU" in alone.verdict


def test_what_cannot_be_ranked_is_said() -> None:
    secret = call(Op("mine.secret.default", (tensor(4096, 4096),), (tensor(4096, 4096),)))
    report = prediction_report("odd", [wavecast.predict(trace(secret, call(mm())), "t4")])
    assert "No GPU can be ranked" in report.verdict
    assert "&gt; " in report.head


def test_the_memory_of_a_step_is_a_page() -> None:
    memories = [wavecast.memory(step(), gpu) for gpu in ("t4", "l4")]
    report = memory_report("step", memories)
    assert [section.title for section in report.sections] == ["Memory on t4", "Memory on l4"]
    assert "fits" in report.verdict
    page = document(report)
    assert "aten.mm" in page
    assert page.count("<path") == 10, "five kinds of memory on each"
    unknown_gpu = memory_report("step", [wavecast.memory(step())])
    assert "beside CUDA" in unknown_gpu.verdict
    large = wavecast.memory(step(state_bytes=1 << 30), "t4")
    assert "does not fit" in memory_report("step", [large]).verdict
    assert "limit for PyTorch" in document(memory_report("step", [large]))


def test_profiles_are_pages() -> None:
    prediction = wavecast.predict(step(), "t4")
    profile = profile_predicted("step", prediction)
    report = predicted_profile_report("step", [profile], [prediction])
    assert report.sections[1].identity == "utilisation"
    assert "tensor-core utilisation" in document(report)
    kernels = tuple(
        replace(one, kernels=(Kernel("sgemm", 1e-4, start_s=index * 1e-3),), host_s=1e-5)
        for index, one in enumerate(step().calls)
    )
    measured = Trace(kernels, measurement=Measurement("Tesla T4", 0.02), samples=4)
    shown = measured_profile_report(
        "step", profile_measured("step", measured, wavecast.device("t4")), measured
    )
    assert "measured" in document(shown)
    assert "sgemm" in document(shown)


def test_a_search_for_strategies_is_a_page() -> None:
    pytest.importorskip("torch")
    from parallel_steps import small_gpt2_step

    from wavecast.hardware.hosts import REFERENCE_HOST
    from wavecast.planning.layout_search import search_layouts
    from wavecast.planning.layouts import Search
    from wavecast.steps.request import on_cluster

    gpu = wavecast.device("h100-sxm-80gb")
    predictor = on_cluster(gpu, wavecast.Parallel())
    search = Search(2, 4, (2,))
    found = search_layouts(search, lambda *_: small_gpt2_step(), predictor, REFERENCE_HOST)
    report = layouts_report("gpt2", found)
    assert "is the fastest of" in report.verdict
    assert "strategies: " in document(report)
    lost = [replace(one, prediction=None, reason="too large") for one in found]
    assert "No strategy fits" in layouts_report("gpt2", lost).verdict


def test_steps_on_several_gpus_are_pages() -> None:
    pytest.importorskip("torch")
    from parallel_steps import small_gpt2_step

    from wavecast.hardware.hosts import REFERENCE_HOST
    from wavecast.planning.scaling import scale
    from wavecast.steps.request import on_cluster

    traced, gpu = small_gpt2_step(), wavecast.device("h100-sxm-80gb")
    strategy = wavecast.Parallel(pipeline=2, data=2, microbatches=4)
    prediction = wavecast.predict(traced, gpu, parallel=strategy)
    report = prediction_report("gpt2", [prediction])
    assert [subject.name for subject in report.subjects] == [
        "4 x h100-sxm-80gb, stage 0",
        "4 x h100-sxm-80gb, stage 1",
    ]
    assert "the fullest GPU" in document(report)
    predictor = on_cluster(gpu, wavecast.Parallel())
    curve = scale(traced, wavecast.Parallel(), [1, 2, 16], predictor, REFERENCE_HOST)
    page = document(scaling_report("gpt2", curve))
    assert "of perfect scaling" in page
    assert "communication" in page

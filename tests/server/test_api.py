from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from kineto_file import File

import wavecast
from wavecast.frameworks.jax.driver import CompiledModule
from wavecast.frameworks.jax.tracing import trace_of
from wavecast.hardware.devices import device
from wavecast.server.app import make_app
from wavecast.server.guard import ServerLimits
from wavecast.server.service import PredictionService, tidy
from wavecast.suite import benchmark

QUESTION = {"model": "dcgan", "batch": 64, "precision": "bf16", "gpus": ["l4", "h100-sxm-80gb"]}


def post(client: TestClient, path: str, body: object, status: int = 200) -> Any:
    answer = client.post(path, json=body)
    assert answer.status_code == status, answer.text
    return answer.json() if answer.content else None


def get(client: TestClient, path: str, status: int = 200) -> Any:
    answer = client.get(path)
    assert answer.status_code == status, answer.text
    return answer.json()


def upload(client: TestClient, content: bytes, kind: str = "application/gzip") -> Any:
    return client.post("/api/traces", content=content, headers={"content-type": kind})


def test_the_catalogue_has_models_with_sizes_and_gpus(client: TestClient) -> None:
    known = get(client, "/api/catalogue")
    models = {model["name"]: model for model in known["models"]}
    assert models["resnet50"]["sizes"]["image"] == 224
    assert models["bert-large"]["sizes"]["layers"] == 24
    assert models["gpt"]["sizes"]["seq"] == 2048
    assert models["gpt"]["sizes"]["ffn"] is None
    assert {"l4", "h100-sxm-80gb"} <= {gpu["id"] for gpu in known["gpus"]}
    assert "bf16" in known["precisions"]


def test_a_prediction_is_that_of_the_library_and_has_a_link(client: TestClient) -> None:
    answer = post(client, "/api/predictions", QUESTION)
    model = benchmark("dcgan")
    trace = wavecast.trace(lambda: model.make_step(64, "bf16"), gpu="l4", samples=64)
    alone = wavecast.predict(trace, "l4")
    (row,) = (row for row in answer["rows"] if row["gpu"] == "l4")
    assert math.isclose(row["seconds"], alone.seconds)
    assert row["low_s"] < row["seconds"] < row["high_s"]
    assert alone.memory is not None
    assert row["needed_bytes"] == alone.memory.needed_bytes
    assert answer["rows"][0]["gpu"] == "h100-sxm-80gb"  # the fastest comes first
    assert "<strong>" in answer["parts"]["verdict"]
    assert get(client, f"/api/results/{answer['id']}") == answer
    said_otherwise = QUESTION | {"model": "DCGAN", "gpus": ["NVIDIA L4", "h100-sxm-80gb"]}
    assert post(client, "/api/predictions", said_otherwise) == answer


def test_sizes_batch_and_strategy_change_the_answer(client: TestClient) -> None:
    def seconds(**controls: Any) -> float:
        return float(post(client, "/api/predictions", QUESTION | controls)["rows"][-1]["seconds"])

    usual = seconds()
    assert seconds(batch=128) > usual
    assert seconds(sizes={"width": 128}) > usual
    spread = post(client, "/api/predictions", QUESTION | {"parallel": {"data": 8, "shard": 3}})
    row = spread["rows"][0]
    assert row["gpus"] == 8
    assert row["throughput_per_s"] > 0
    assert row["needed_bytes"] < row["memory_bytes"]
    decoder = {"model": "llama", "batch": 1, "sizes": {"layers": 1, "hidden": 64, "heads": 8}}
    assert post(client, "/api/predictions", QUESTION | decoder)["rows"][0]["unit"] == "tokens"


def test_a_compiled_model_is_faster_and_a_trace_cannot_be_compiled(client: TestClient) -> None:
    sizes = {"layers": 1, "hidden": 256, "heads": 8, "ffn": 512, "vocab": 1024}
    model = {"model": "llama", "batch": 8, "precision": "bf16", "sizes": sizes, "gpus": ["l4"]}
    eager, compiled = (
        post(client, "/api/predictions", model | {"compile": choice})["rows"][0]["gpu_s"]
        for choice in (False, True)
    )
    assert compiled < eager
    traced = {"trace": "0" * 64, "gpus": ["l4"], "compile": True}
    assert "compile" in post(client, "/api/predictions", traced, 422)["error"]["message"]


def test_details_and_report_of_a_result(client: TestClient) -> None:
    answer = post(client, "/api/predictions", QUESTION)
    details = get(client, f"/api/results/{answer['id']}/gpus/l4")
    text = "".join(details["sections"])
    for part in ("Where the time goes", "Memory", "timeline"):
        assert part in text
    assert "style=" not in text  # the policy of the page would not allow it
    assert details["data"]["subjects"]
    report = client.get(f"/api/results/{answer['id']}/report")
    assert report.status_code == 200
    assert report.headers["content-disposition"].startswith("attachment")
    assert report.text.startswith("<!doctype html>")
    assert "http://" not in report.text.replace("http://www.w3.org/", "")
    get(client, f"/api/results/{answer['id']}/gpus/t4", 404)
    get(client, f"/api/results/{'0' * 32}", 404)
    get(client, "/api/results/../../etc/passwd", 404)


def test_saved_results_survive_a_restart_with_their_details(tmp_path: Path) -> None:
    limits = ServerLimits(workers=1)

    def client() -> TestClient:
        service = PredictionService(tmp_path, limits)
        return TestClient(make_app(service, limits), base_url="http://127.0.0.1")

    with client() as first:
        answer = post(first, "/api/predictions", QUESTION)
        post(first, f"/api/results/{answer['id']}/save", {}, 204)
        details = get(first, f"/api/results/{answer['id']}/gpus/l4")
    with client() as again:
        assert get(again, f"/api/results/{answer['id']}") == answer
        assert get(again, f"/api/results/{answer['id']}/gpus/l4") == details


def test_an_uploaded_trace_is_predicted(client: TestClient, saved_step: Path) -> None:
    about = upload(client, saved_step.read_bytes()).json()
    assert about["calls"] == 10
    assert about["has_memory"]
    question = {"trace": about["trace"], "label": "mine", "gpus": ["l4"]}
    answer = post(client, "/api/predictions", question)
    assert answer["target"] == "mine"
    assert answer["rows"][0]["fits"]
    fixed = post(client, "/api/predictions", question | {"precision": "fp16"}, 422)
    assert "precision of a trace is fixed" in fixed["error"]["message"]
    fixed = post(client, "/api/predictions", question | {"batch": 3}, 422)
    assert "upload.json.gz is a trace, whose batch is fixed" in fixed["error"]["message"]


def test_an_uploaded_trace_of_jax_is_predicted_on_its_gpu_and_on_others(
    client: TestClient, tmp_path: Path
) -> None:
    module = (Path(__file__).parents[1] / "frameworks/jax/step.hlo").read_text(encoding="utf-8")
    sizes = {"argument": 425_984, "output": 33_024, "alias": 32_768, "temp": 300_000}
    trace_of(CompiledModule(module, sizes), device("l4")).save(tmp_path / "step.json.gz")
    about = upload(client, (tmp_path / "step.json.gz").read_bytes()).json()
    question = {"trace": about["trace"], "gpus": ["l4", "h100-sxm-80gb"]}
    answer = post(client, "/api/predictions", question)
    assert all(row["fits"] for row in answer["rows"])
    assert "XLA compiled the step for l4" in json.dumps(answer)


def test_a_profiler_file_is_scaled(client: TestClient, tmp_path: Path) -> None:
    file = File()
    file.op("aten::relu", "relu_kernel", us=50.0)
    path = file.write(tmp_path, "profile.json")
    about = upload(client, path.read_bytes(), "application/json").json()
    assert about["measured_on"] == "Tesla V100"
    assert about["origin"] is None  # there are several
    question = {"trace": about["trace"], "gpus": ["l4"]}
    refused = post(client, "/api/predictions", question, 422)
    assert "v100-sxm-16gb" in refused["error"]["message"]
    answer = post(client, "/api/predictions", question | {"origin": "v100-sxm-16gb"})
    assert answer["measured"]
    assert answer["target"] == "the uploaded file"
    assert answer["rows"][0]["fits"] is None


def test_a_gpu_on_which_nothing_can_be_predicted_does_not_spoil_the_others(
    client: TestClient,
) -> None:
    spread = {"data": 2, "cluster": "dgx-h100"}
    gpus = ["h100-sxm-80gb", "mi300x"]
    answer = client.post("/api/predictions", json=QUESTION | {"parallel": spread, "gpus": gpus})
    assert answer.status_code == 200
    assert {row["gpu"] for row in answer.json()["rows"]} | set(answer.json()["failed"]) == set(gpus)


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({"model": "train.py:make_step", "gpus": ["l4"]}, "files and code are not taken"),
        ({"model": "os:system", "gpus": ["l4"]}, "files and code are not taken"),
        ({"model": "resnet50", "gpus": ["/etc/passwd.toml"]}, "files and code are not taken"),
        ({"model": "resnet51", "gpus": ["l4"]}, "did you mean"),
        ({"model": "resnet50", "gpus": ["h1000"]}, "h100"),
        ({"model": "resnet50", "batch": 0, "gpus": ["l4"]}, "batch: "),
        ({"model": "dcgan", "sizes": {"<b>": 3}, "gpus": ["l4"]}, "not a name"),
        ({"trace": "0" * 64, "gpus": ["l4"]}, "no longer kept"),
    ],
)
def test_a_question_that_makes_no_sense_is_answered_with_the_reason(
    client: TestClient, body: Any, told: str
) -> None:
    answer = client.post("/api/predictions", json=body)
    assert answer.status_code in (404, 422)
    assert told in answer.json()["error"]["message"]


def test_what_was_sent_is_not_repeated_in_an_error(client: TestClient) -> None:
    for field in ("<script>alert(1)</script>", "\x1b[31m", "\u202e"):
        body = {"model": field, "gpus": [field], field: {field: field}}
        message = client.post("/api/predictions", json=body).text
        assert "script" not in message
        assert "\\u001b" not in message
        assert "202e" not in message


def test_messages_have_no_paths() -> None:
    upload_name = "/srv/data/uploads/" + "0" * 64 + ".json.gz"
    assert tidy(f"cannot read {upload_name}: it is") == "cannot read upload.json.gz: it is"
    assert tidy("at /usr/lib/wavecast/suite/vision.py:189: no") == "at vision.py:189: no"
    assert tidy("no file /home/me/secret/file") == "no file ..."
    assert tidy(r"no file C:\Users\me\x.npz") == "no file ..."
    assert tidy("3 samples/s \x1b[31m") == "3 samples/s \\x1b[31m"


def test_the_api_is_described_and_its_pages_load_nothing_from_elsewhere(client: TestClient) -> None:
    described = get(client, "/api/openapi.json")
    assert {"/api/predictions", "/api/traces", "/api/catalogue"} <= set(described["paths"])
    for path in described["paths"].values():
        for operation in path.values():
            assert operation["description"]
    assert client.get("/docs").status_code == 404
    page = client.get("/")
    assert page.headers["content-type"].startswith("text/html")
    assert client.get(f"/r/{'0' * 32}").text == page.text
    names = ["page.css", "page.js", "controls.js", "icon.svg", "report.css", "report.js"]
    for text in (page.text, *(client.get(f"/static/{name}").text for name in names)):
        assert "https://" not in text
        assert "http://" not in text.replace("http://www.w3.org/", "")
    assert " style=" not in page.text
    assert "onclick" not in page.text
    assert client.get("/static/../app.py").status_code == 404
    assert client.get("/static/%2e%2e%2fapp.py").status_code == 404


def test_a_page_that_has_not_changed_is_not_sent_again(client: TestClient) -> None:
    tag = client.get("/static/page.css").headers["etag"]
    again = client.get("/static/page.css", headers={"if-none-match": tag})
    assert (again.status_code, again.content) == (304, b"")


def test_answers_are_plain_json(client: TestClient) -> None:
    body = client.post("/api/predictions", json=QUESTION)
    assert body.headers["content-type"] == "application/json"
    assert body.headers["cache-control"] == "no-store"
    json.loads(body.text, parse_constant=lambda name: pytest.fail(name))


def test_models_of_hugging_face_are_fine_tuned(client: TestClient) -> None:
    pytest.importorskip("transformers")
    models = {model["name"]: model for model in get(client, "/api/catalogue")["models"]}
    assert models["hf:llama-3.2-1b"] == {
        **{"name": "hf:llama-3.2-1b", "title": "Llama 3.2 1B", "domain": "Hugging Face"},
        **{"batch": 1, "unit": "tokens", "sizes": {"seq": 2048}, "adapts": True},
    }
    small = {"model": "hf:Llama-3.2-1B", "sizes": {"seq": 64}, "batch": 1, "gpus": ["l4"]}
    whole = post(client, "/api/predictions", small)
    lora = post(client, "/api/predictions", small | {"adapters": "lora", "checkpointing": True})
    assert whole["question"]["model"] == "hf:llama-3.2-1b"
    assert lora["rows"][0]["needed_bytes"] < whole["rows"][0]["needed_bytes"]
    assert "checkpointing" in lora["target"]
    unknown = post(client, "/api/predictions", small | {"model": "hf:llama-9"}, 422)
    assert "llama-3.1-8b" in unknown["error"]["message"]
    other = post(client, "/api/predictions", QUESTION | {"adapters": "lora"}, 422)
    assert "hf:NAME" in other["error"]["message"]


def test_all_offers_are_compared_within_a_budget(client: TestClient) -> None:
    answer = post(client, "/api/predictions", QUESTION | {"training": {"samples": 1e8}})
    place = f"/api/results/{answer['id']}/choices"
    choice = post(client, place, {"budget_usd": 500.0, "deadline_h": 48.0, "most_gpus": 2})
    assert "$" in choice["verdict"]
    told = "".join(choice["sections"])
    assert "2 x l4" in told
    assert f"wavecast predict {QUESTION['model']} --batch " in told  # not TARGET
    assert f"--precision {QUESTION['precision']} --gpu" in told
    poor = post(client, place, {"budget_usd": 0.001})
    assert choice["verdict"] != poor["verdict"]
    unasked = post(client, "/api/predictions", QUESTION)
    refused = post(client, f"/api/results/{unasked['id']}/choices", {}, 422)
    assert "how long the training is" in refused["error"]["message"]


def test_changes_are_advised_for_a_model_and_for_a_trace(
    client: TestClient, saved_step: Path
) -> None:
    small = {"model": "gpt", "sizes": {"layers": 1, "hidden": 64, "heads": 4, "seq": 32}}
    answer = post(client, "/api/predictions", small | {"gpus": ["l4"]})
    advice = get(client, f"/api/results/{answer['id']}/gpus/l4/advice")
    assert "fused" in "".join(advice["sections"])
    assert "The cheapest other GPU: " in "".join(advice["sections"])
    assert advice["verdict"]
    kept = upload(client, saved_step.read_bytes()).json()
    answer = post(client, "/api/predictions", {"trace": kept["trace"], "gpus": ["l4"]})
    advice = get(client, f"/api/results/{answer['id']}/gpus/l4/advice")
    assert advice["sections"]
    get(client, f"/api/results/{answer['id']}/gpus/t4/advice", 404)

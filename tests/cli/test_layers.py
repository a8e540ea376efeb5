"""`wavecast layers fit` and `layers predict`, on steps that were measured on our GPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from shell import run

from lab.measured import campaigns
from wavecast.errors import InvalidInput
from wavecast.runs.regression.per_layer import published, read_lines, write_lines

SUITE = campaigns.traces("suite")


@pytest.fixture
def measured(tmp_path: Path) -> Path:
    """Measured steps of DCGAN, whose layers are of six categories, and of GPT-2."""
    for key in ("dcgan-b32-fp32", "dcgan-b128-fp32", "gpt2-b2-fp32"):
        SUITE[key].save(tmp_path / f"{key}.json.gz")
    return tmp_path


def test_lines_of_one_measured_network_predict_another(measured: Path) -> None:
    lines = measured / "lines.json"
    files = [measured / f"dcgan-b{batch}-fp32.json.gz" for batch in (32, 128)]
    done = run("layers", "fit", *files, "-o", lines)
    assert done.code == 0, done.err
    assert "Transposed conv   backward" in done.out
    assert "Batch norm" in done.out
    record = json.loads(run("layers", "fit", *files, "--json").out)
    assert {line["category"] for line in record["lines"]} == {
        *("Conv/FC", "Batch norm", "Activation", "Transposed conv", "ReLU/Drop")
    }
    assert (record["unit"], record["left_out"]) == ("operations", [])

    # The same layers at the batches that were fitted: the sum is near the measured one.
    asked = ("layers", "predict", files[1], "--from", lines)
    again = json.loads(run(*asked, "--json").out)
    both = again["measured_forward_s"] + again["measured_backward_s"]
    assert again["seconds"] == pytest.approx(both, rel=0.3)
    assert again["unpredicted"] == []
    assert "measured" in run(*asked).out
    smaller = json.loads(run(*asked, "--batch", 64, "--json").out)
    assert smaller["measured_forward_s"] is None
    assert smaller["seconds"] < again["seconds"]

    other = run("layers", "predict", "alexnet", "--batch", 16, "--from", lines, "-n", 1000)
    assert other.code == 0, other.err
    assert other.out.startswith("alexnet, batch 16, fp32, 1000 iterations")
    assert "not predicted: AlexNet.2 (Norm, forward), AlexNet.2 (Norm, backward)" in other.out
    no_line, total = (cells_of(other.out, name) for name in ("no line", "sum"))
    assert no_line[-1] == total[-1] == "?"
    assert "shares: of the time of layers that have a line" in other.out


def test_layers_without_a_line_have_the_share_that_was_measured(measured: Path) -> None:
    """The lines of GPT-2's matmuls say nothing of its norms, which the table shows, too."""
    lines, path = measured / "lines.json", measured / "gpt2-b2-fp32.json.gz"
    assert run("layers", "fit", path, "--batch", 2, "-o", lines).code == 0
    asked = ("layers", "predict", path, "--batch", 2, "--from", lines)
    record = json.loads(run(*asked, "--json").out)
    shown = run(*asked).out
    rest, total = (cells_of(shown, name) for name in ("no line", "sum"))
    whole = record["measured_forward_s"] + record["measured_backward_s"]
    with_line = cells_of(shown, "Conv/FC")
    assert int(with_line[6].rstrip("%")) + int(rest[3].rstrip("%")) == 100
    assert int(rest[3].rstrip("%")) > 10
    assert total[6] == "100%"
    assert total[-1] == f"{record['seconds'] / whole - 1:+.0%}"


def cells_of(shown: str, name: str) -> list[str]:
    """The words of a row after its name."""
    (row,) = (line for line in shown.splitlines() if line.startswith(f"{name} "))
    return row.removeprefix(name).split()


def test_lines_may_go_through_predicted_times(measured: Path) -> None:
    lines = measured / "lines.json"
    files = [measured / f"dcgan-b{batch}-fp32.json.gz" for batch in (32, 128)]
    options = ("--work", "predicted", "--method", "proportional non-negative", "-o", lines)
    done = run("layers", "fit", *files, *options)
    assert "per predicted s" in done.out
    assert read_lines(lines).unit == "predicted seconds on h200-sxm"
    record = json.loads(run("layers", "predict", files[1], "--from", lines, "--json").out)
    both = record["measured_forward_s"] + record["measured_backward_s"]
    assert record["seconds"] == pytest.approx(both, rel=0.15)
    done = run("layers", "predict", files[1], "--batch", 64, "--from", lines)
    assert (done.code, "need the work of each layer at batch 64" in done.err) == (1, True)


def test_a_trace_of_tokens_takes_its_batch_from_the_command(measured: Path) -> None:
    path = measured / "gpt2-b2-fp32.json.gz"
    done = run("layers", "fit", path)
    assert (done.code, "counts tokens" in done.err) == (1, True)
    record = json.loads(run("layers", "fit", path, "--batch", 2, "--json").out)
    assert "Attention" not in {line["category"] for line in record["lines"]}
    assert [text.split(":")[0] for text in record["left_out"]] == [
        *("Embedding forward", "Embedding backward", "Sum forward"),
        *("ReLU/Drop forward", "ReLU/Drop backward"),
        *("Layer norm forward", "Layer norm backward"),
        *("Attention forward", "Attention backward"),
        *("Activation forward", "Activation backward"),
    ]


def test_published_lines_have_the_published_times() -> None:
    asked = ("layers", "predict", "caffe:vgg16", "--batch", 32, "--from", "quadro-m6000-12gb")
    record = json.loads(run(*asked, "--json").out)
    assert 1e3 * record["forward_s"] == pytest.approx(191.028, abs=5e-4)
    assert 1e3 * record["backward_s"] == pytest.approx(403.789, abs=5e-4)
    assert "Quadro M6000, on GoogLeNet" in run(*asked).out


def test_a_log_of_caffe_time_is_fitted_with_its_network(tmp_path: Path) -> None:
    path = tmp_path / "time.log"
    layers = ("conv1", "conv2", "conv3", "conv4", "relu1")
    rows = [f"x] {name}\tforward: {n}.5 ms." for n, name in enumerate(layers, start=1)]
    path.write_text("\n".join(["Average time per layer:", *rows, "Average Forward pass: 9 ms."]))
    options = ("--network", "alexnet", "--batch", 64)
    record = json.loads(run("layers", "fit", path, *options, "--json").out)
    assert [(line["category"], line["layers"]) for line in record["lines"]] == [("Conv/FC", 4)]
    assert record["left_out"][0].startswith("ReLU/Drop forward")
    done = run("layers", "fit", path)
    assert (done.code, "needs --network and --batch" in done.err) == (1, True)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("fit", "{saved}"), "traced, not measured, so its layers have no times"),
        (("fit", "{saved}", "--work", "flops"), '"operations" or "predicted", not "flops"'),
        (("fit", "{saved}", "-o", "lines.csv"), "lines are saved as FILE.json"),
        (("predict", "caffe:vgg16", "--from", "quadro-m6000"), "give --batch"),
        (("predict", "caffe:lenet", "--batch", "4", "--from", "quadro-m6000"), "no reference"),
        (("predict", "caffe:vgg16", "--batch", "4", "--from", "none.json"), "cannot read"),
        (("predict", "caffe:vgg16", "--batch", "4", "--from", "{saved}"), "cannot read the lines"),
    ],
)
def test_wrong_uses_say_what_to_do(arguments: tuple[str, ...], said: str, saved: Path) -> None:
    done = run("layers", *(argument.format(saved=saved) for argument in arguments))
    assert (done.code, said in done.err) == (1, True), done.err


def test_lines_survive_their_file_and_damaged_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "lines.json"
    write_lines(path, published("quadro-m6000"))
    assert read_lines(path) == published("quadro-m6000")
    good = path.read_text()
    for old, new, said in (
        ('"Conv/FC"', '"Convolution"', "damaged"),
        ('"version": 1', '"version": 2', "version 2"),
        ("wavecast-layers", "other", "not written by"),
        ('"unit": "operations"', '"unit": 3', "damaged"),
        ('"fixed_s": 0.000183', '"fixed_s": "soon"', "damaged"),
    ):
        assert old in good
        path.write_text(good.replace(old, new, 1))
        with pytest.raises(InvalidInput, match=said):
            read_lines(path)

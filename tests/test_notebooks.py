"""The notebooks run from the first cell to the last, and print what they promise."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[1] / "examples"
NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))


@pytest.fixture
def executed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A notebook after all its cells ran in a new process."""
    pytest.importorskip("torch")
    pytest.importorskip("ipykernel")
    nbformat = pytest.importorskip("nbformat")
    client = pytest.importorskip("nbclient")
    source = Path(__file__).parents[1] / "src"
    paths = (str(source), os.environ.get("PYTHONPATH", ""))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
    monkeypatch.setenv("PYDEVD_DISABLE_FILE_VALIDATION", "1")
    book = nbformat.read(request.param, as_version=4)
    resources = {"metadata": {"path": str(EXAMPLES)}}
    return client.NotebookClient(book, timeout=300, resources=resources).execute()


def printed(book: Any) -> str:
    """The text that all cells printed."""
    outputs = [output for cell in book.cells for output in cell.get("outputs", ())]
    return "".join(output.get("text", "") for output in outputs)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_is_kept_without_output(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert '"outputs": []' in text
    assert '"output_type"' not in text


@pytest.mark.filterwarnings("ignore")  # of the libraries that run notebooks
@pytest.mark.parametrize("executed", [EXAMPLES / "choose_a_gpu.ipynb"], indirect=True)
def test_a_gpu_is_chosen_in_a_notebook(executed: Any) -> None:
    out = printed(executed)
    assert "h100-sxm-80gb" in out
    assert "cheapest: " in out
    assert "$" in out

"""Pages that people look at fit into a window of 1280 pixels."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from chromium import browser, cut_off
from shell import run

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The documents, built."""
    pytest.importorskip("mkdocs")
    browser()
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--no-directory-urls"]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    subprocess.run([*command, "-d", str(folder)], cwd=ROOT, env=environment, check=True)
    return folder


def test_nothing_in_the_documents_is_cut_off(site: Path, tmp_path: Path) -> None:
    pages = [page for page in sorted(site.rglob("*.html")) if page.name != "404.html"]
    assert len(pages) > 30
    assert cut_off(pages, tmp_path) == {}


def test_nothing_on_our_own_pages_is_cut_off(tmp_path: Path) -> None:
    memory, suite = tmp_path / "memory.html", tmp_path / "suite.html"
    done = run("memory", "resnet50", "--batch", "2", "--gpu", "l4", "--html", memory)
    assert done.code == 0, done.err
    options = ("--model", "dcgan", "--precision", "bf16", "--scale", "0.25", "--html", suite)
    done = run("suite", "predict", "--gpu", "l4", *options)
    assert done.code == 0, done.err
    assert cut_off([memory, suite], tmp_path) == {}


def test_what_is_too_wide_is_seen(tmp_path: Path) -> None:
    page = tmp_path / "wide.html"
    page.write_text("<!doctype html><body><pre>" + "wide " * 500 + "</pre>", encoding="utf-8")
    assert cut_off([page], tmp_path)

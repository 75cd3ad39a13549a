"""The notebook in the examples is the page of the documentation, whose code is run as a page."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest

from examples.finetune.notebook import NOTEBOOK, PAGE, notebook_of


def cells(kind: str) -> list[str]:
    found = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in found if cell["cell_type"] == kind]


def test_the_notebook_is_made_of_the_page_as_it_is() -> None:
    page = PAGE.read_text(encoding="utf-8")
    same = NOTEBOOK.read_text(encoding="utf-8") == notebook_of(page)
    assert same, "the page has changed: python -m examples.finetune.notebook"
    code = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert cells("code")[1:] == [block.removesuffix("\n") for block in code]
    titles = re.compile(r"^#+ .*", re.MULTILINE)
    assert titles.findall("\n".join(cells("markdown"))) == titles.findall(page)


def test_its_links_lead_somewhere() -> None:
    links = re.findall(r"\]\(([^)]+)\)", "\n".join(cells("markdown")))
    assert links
    for link in links:
        assert (NOTEBOOK.parent / link).is_file(), link


def test_it_finds_the_clone_and_writes_elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.mkdtemp", lambda: str(tmp_path))
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.chdir(NOTEBOOK.parent)
    exec(cells("code")[0], {})
    assert sys.path == [str(NOTEBOOK.parents[2])]
    assert os.getcwd() == str(tmp_path)

"""The page of the documentation that fine-tunes a model, as a notebook; the tests run the code of the page.

python -m examples.finetune.notebook
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "howto" / "finetune.md"
NOTEBOOK = HERE / "finetune.ipynb"

#: what a notebook needs that a page does not: the clone that it lies in on the path, and a folder for what it writes
SETUP = """\
import os
import sys
import tempfile

sys.path.insert(0, os.path.abspath("../.."))
os.chdir(tempfile.mkdtemp())"""

_CODE = re.compile(r"^```python\n(.*?)\n```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(\]\()(?!https?:)([^)#]+)")
#: the offer of this very notebook
_OFFER = re.compile(r"^.*\{download\}.*\n", re.MULTILINE)


def cells_of(page: str) -> Iterator[dict[str, Any]]:
    """Cells for the text and the code of a page, in order."""
    title, rest = page.split("\n", 1)
    yield _cell("markdown", title)
    yield _cell("code", SETUP)
    # What the expression captures, which is code, is every second part.
    for number, part in enumerate(_CODE.split(_OFFER.sub("", rest))):
        if number % 2:
            yield _cell("code", part)
        elif part.strip():
            yield _cell("markdown", _LINK.sub(_from_here, part.strip()))


def _cell(kind: str, text: str) -> dict[str, Any]:
    found: dict[str, Any] = {"cell_type": kind, "metadata": {}, "source": text.splitlines(keepends=True)}
    return found | ({"execution_count": None, "outputs": []} if kind == "code" else {})


def _from_here(link: re.Match[str]) -> str:
    """A link of the page, as it is from the folder of the notebook."""
    return link[1] + posixpath.normpath(posixpath.join("../../docs/howto", link[2]))


def notebook_of(page: str) -> str:
    """A page as the text of a notebook."""
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    content = {"cells": list(cells_of(page)), "metadata": metadata, "nbformat": 4, "nbformat_minor": 4}
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    NOTEBOOK.write_text(notebook_of(PAGE.read_text(encoding="utf-8")), encoding="utf-8")

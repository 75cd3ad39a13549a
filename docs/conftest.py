"""Runs every Python block of every page, each page in one namespace and in a folder of its own."""

from __future__ import annotations

import os
import tempfile
from typing import Any

from sybil import Sybil
from sybil.parsers.myst import PythonCodeBlockParser, SkipParser

collect_ignore = ["conf.py", "_build"]


def enter_empty_folder(namespace: dict[str, Any]) -> None:
    """Let a page write files without leaving any."""
    namespace["_home"] = os.getcwd()
    namespace["_folder"] = tempfile.TemporaryDirectory()
    os.chdir(namespace["_folder"].name)


def leave_folder(namespace: dict[str, Any]) -> None:
    """Go back, whatever the page did."""
    os.chdir(namespace["_home"])
    namespace["_folder"].cleanup()


pytest_collect_file = Sybil(
    parsers=[PythonCodeBlockParser(), SkipParser()],
    patterns=["*.md"],
    excludes=["_build/**"],
    setup=enter_empty_folder,
    teardown=leave_folder,
).pytest()

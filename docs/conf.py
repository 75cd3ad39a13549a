"""Sphinx configuration: everything strict, nothing fetched from the network."""

from __future__ import annotations

from importlib.metadata import version as version_of

import sphinx_autosummary_accessors

import insitu_xr  # noqa: F401  registers the accessors that the reference documents

project = "insitu-xr"
author = "the insitu-xr developers"
copyright = author
release = version_of("insitu-xr")
version = release

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx_autosummary_accessors",
]
exclude_patterns = ["_build", "changes", "reference/generated/*.md", "explanation/performance-*.md"]
templates_path = ["_templates", sphinx_autosummary_accessors.templates_path]

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

autosummary_generate = True
autodoc_typehints = "none"  # the numpydoc sections say it, in words
napoleon_google_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True

# References to ourselves must resolve. Names of other projects would need their inventories, hence the network.
nitpick_ignore_regex = [("py:.*", r"(?!insitu_xr\b).*")]

html_theme = "furo"
html_title = f"insitu-xr {release}"
html_copy_source = False

"""Bridges from insitu_xr to frameworks and stores.

Each module here uses the public names of ``insitu_xr`` only, imports its framework when it is first called, and
knows nothing of the other modules. The core finds them through the entry-point group ``insitu_xr.adapters``.
"""

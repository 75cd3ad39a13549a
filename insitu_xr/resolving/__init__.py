"""From what a person typed to a request in positions: every rule is checked here, before any data is read."""

from __future__ import annotations

from insitu_xr.resolving.asked import Asked, Group, groups_of, names_of
from insitu_xr.resolving.channels import channel_dims_of
from insitu_xr.resolving.drawing import Drawing
from insitu_xr.resolving.pivot import pivot_of
from insitu_xr.resolving.requesting import request_of
from insitu_xr.resolving.sampling import check_not_empty, sample_dims_of
from insitu_xr.resolving.splitting import SplitAsked, splits_of

__all__ = [
    "Asked",
    "Drawing",
    "Group",
    "SplitAsked",
    "channel_dims_of",
    "check_not_empty",
    "groups_of",
    "names_of",
    "pivot_of",
    "request_of",
    "sample_dims_of",
    "splits_of",
]

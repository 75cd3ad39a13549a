"""Which snapshot of a repository: by branch, tag, id or time."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import pandas as pd

from insitu_xr.errors import RequestError, UnknownNameError
from insitu_xr_adapters.icechunk.failing import explained

_SHOWN = 10
_SHOWN_SNAPSHOTS = 5
_MAIN = "main"


@dataclass(frozen=True, slots=True)
class Version:
    """What was asked for; at most one of the tag, the snapshot, and the branch with its time."""

    branch: str | None = None
    tag: str | None = None
    snapshot: str | None = None
    as_of: dt.datetime | None = None

    @classmethod
    def of(cls, branch: Any, tag: Any, snapshot: Any, as_of: Any) -> Version:
        """Check what was given.

        Examples
        --------
        >>> Version.of(None, None, None, "2026-11-29T12:00").description()
        {'branch': 'main', 'as_of': '2026-11-29T12:00:00+00:00'}
        """
        for name, value in {"branch": branch, "tag": tag, "snapshot": snapshot}.items():
            if value is not None and (not isinstance(value, str) or not value):
                raise RequestError(f"{name} must be a name, but got {value!r}; leave it out for branch='main'")
        asked = {"branch": branch, "tag": tag, "snapshot": snapshot, "as_of": as_of}
        named = [name for name, value in asked.items() if value is not None]
        if len(named) > 1 and set(named) != {"branch", "as_of"}:
            raise RequestError(
                f"a version must be named by one of branch, tag and snapshot, or by as_of on a branch, but got "
                f"{' and '.join(named)}; leave out all but one"
            )
        if tag is None and snapshot is None:
            branch = _MAIN if branch is None else branch
        return cls(branch, tag, snapshot, None if as_of is None else _moment(as_of))

    def given(self) -> list[str]:
        """What was asked for beside the default, by the names of the arguments."""
        values = {"branch": self.branch, "tag": self.tag, "snapshot": self.snapshot, "as_of": self.as_of}
        return [name for name, value in values.items() if value is not None and (name, value) != ("branch", _MAIN)]

    def description(self) -> dict[str, str]:
        """What to show of it beside the snapshot."""
        shown = {"branch": self.branch, "tag": self.tag, "as_of": self.as_of and self.as_of.isoformat()}
        return {name: value for name, value in shown.items() if value}


def _moment(value: Any) -> dt.datetime:
    """A time with its zone, which is UTC where none is given."""
    if not isinstance(value, str | dt.date | np.datetime64):
        raise RequestError(f"as_of must be a time, but got {value!r}; write it as '2026-11-29T12:00'")
    try:
        stamp = pd.Timestamp(value)
    except ValueError as error:
        raise RequestError(f"as_of must be a time, but got {value!r}; write it as '2026-11-29T12:00'") from error
    if pd.isna(stamp):
        raise RequestError("as_of must be a time, but got none (NaT); leave it out for the last snapshot")
    stamp = stamp.tz_localize("UTC") if stamp.tzinfo is None else stamp.tz_convert("UTC")
    moment: dt.datetime = stamp.floor("us").to_pydatetime()
    return moment.astimezone(dt.UTC)


def pin(repository: Any, version: Version, place: dict[str, str]) -> tuple[Any, dict[str, str]]:
    """Choose the snapshot, and return its store and what to show of both."""
    session = _session(repository, version, place["url"])
    return session.store, {**place, **version.description(), "snapshot": session.snapshot_id}


def _session(repository: Any, version: Version, url: str) -> Any:
    import icechunk

    try:
        if version.as_of is not None:
            return repository.readonly_session(version.branch, as_of=version.as_of)
        return repository.readonly_session(version.branch, tag=version.tag, snapshot_id=version.snapshot)
    except (icechunk.NotFoundError, icechunk.InvalidInputError) as error:
        with explained(url):
            unknown = _unknown(repository, version, error, url)
        raise unknown from error


def _unknown(repository: Any, version: Version, error: Any, url: str) -> UnknownNameError:
    """Say what does exist."""
    if error.kind == "no-snapshot-at-time":
        *_, first = repository.ancestry(branch=version.branch)
        return UnknownNameError(
            f"as_of must not lie before the first snapshot of branch {version.branch!r} of {url!r}, which is of "
            f"{_shown(first.written_at)}, but got {_shown(version.as_of)}; choose a later time"
        )
    if version.tag is not None:
        tags = repository.list_tags()
        remedy = "choose one of them" if tags else "choose a branch or a snapshot"
        return UnknownNameError(f"tag must be one of {url!r}, {_names(tags)}, but got {version.tag!r}; {remedy}")
    if version.snapshot is not None:
        recent = islice(repository.ancestry(branch=_MAIN), _SHOWN_SNAPSHOTS)
        shown = ", ".join(f"{info.id} ({_shown(info.written_at)}: {info.message})" for info in recent)
        return UnknownNameError(
            f"snapshot must be the id of a snapshot of {url!r}, but got {version.snapshot!r}; the last ones of its "
            f"branch {_MAIN!r} are {shown}"
        )
    branches = _names(repository.list_branches())
    return UnknownNameError(f"branch must be one of {url!r}, {branches}, but got {version.branch!r}; choose one")


def _names(names: Iterable[str]) -> str:
    every = sorted(names)
    if not every:
        return "which has none"
    more = f" and {len(every) - _SHOWN} more" if len(every) > _SHOWN else ""
    return f"which has {', '.join(map(repr, every[:_SHOWN]))}{more}"


def _shown(moment: Any) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"


def pin_session(session: Any) -> tuple[Any, dict[str, str]]:
    """Return the store of a session at the snapshot where it is now, whatever becomes of the session."""
    description = {"kind": "icechunk", "url": "icechunk:", "snapshot": session.snapshot_id}
    if session.read_only:
        return session.store, description
    if session.has_uncommitted_changes:
        raise RequestError(
            f"a session must have no uncommitted changes, but got a writable one of branch {session.branch!r} that has "
            "some; commit them, or pass repository.readonly_session(...) to read without them"
        )
    if session.branch is not None:
        description["branch"] = session.branch
    # A fork has changes of its own, of which there will be none: what the session writes or commits is not seen.
    return session.fork().store.with_read_only(True), description

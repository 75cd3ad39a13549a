"""Icechunk repositories, each opened at one snapshot: ``insitu_xr.open_dataset("icechunk+s3://bucket/prefix")``.

A branch moves on when others commit. What is opened here does not: the snapshot is chosen once, names the data in
manifests and caches, and is what worker processes read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from insitu_xr.errors import InsituError, RequestError
from insitu_xr_adapters.icechunk.failing import explained, explained_reading
from insitu_xr_adapters.icechunk.places import Place, described, is_repository
from insitu_xr_adapters.icechunk.versions import Version, pin, pin_session
from insitu_xr_adapters.icechunk.virtual import Authorized, authorize

if TYPE_CHECKING:
    from zarr.abc.store import Store

__all__ = ["IcechunkOpener", "opener"]


class IcechunkOpener:
    """Opens what Icechunk stores; `insitu_xr.open_dataset` asks it for ``icechunk://`` and ``icechunk+...://``.

    Examples
    --------
    >>> opener.claims("icechunk.txt"), opener.claims(3)
    (False, False)
    """

    name = "icechunk"
    schemes = ("icechunk",)
    extra = "icechunk"
    options = frozenset({"branch", "tag", "snapshot", "as_of", "virtual", "config"})

    def claims(self, source: object) -> bool:
        """Whether this is an object of Icechunk, or a local folder that holds a repository; asks no network."""
        if type(source).__module__.partition(".")[0] == "icechunk":
            return type(source).__name__ in ("Repository", "Session", "ForkSession", "IcechunkStore")
        return is_repository(source)

    def explain(self, error: BaseException, name: str) -> InsituError | None:
        """What an error means that came up in reading what was opened; None for what does not come from Icechunk."""
        return explained_reading(error, name)

    def open(
        self,
        source: Any,
        *,
        storage_options: Mapping[str, Any] | None = None,
        branch: str | None = None,
        tag: str | None = None,
        snapshot: str | None = None,
        as_of: Any = None,
        virtual: Any = None,
        config: Any = None,
    ) -> tuple[Store, dict[str, str]]:
        """Choose a snapshot and return its store, which cannot be written to.

        Parameters
        ----------
        source : str, path, icechunk.Repository, icechunk.Session or icechunk.IcechunkStore
            ``icechunk+s3://bucket/prefix``, ``icechunk+gs://bucket/prefix``, ``icechunk+az://container/prefix``,
            ``icechunk+https://host/path``, ``icechunk:///local/path``, or an object of Icechunk. A session is at a
            snapshot already; a writable one must have no uncommitted changes.
        storage_options : mapping, optional
            Arguments of ``icechunk.s3_storage``, ``gcs_storage``, ``azure_storage`` or ``http_storage``; the names that
            obstore has for them will do as well.
        branch, tag, snapshot : str, optional
            Which snapshot: the last one of a branch (of ``main`` by default), that of a tag, or the one with this id.
        as_of : str or datetime, optional
            The last snapshot that the branch had at this time; UTC where it names no time zone.
        virtual : str, sequence of str, or mapping of str to credentials, optional
            URL prefixes of files outside of the repository that its virtual chunks may be read from. Credentials are
            objects of Icechunk, or mappings of the arguments of ``icechunk.s3_credentials`` and ``icechunk.s3_store``
            (and likewise for gs and az); by default they come from the environment.
        config : icechunk.RepositoryConfig, optional
            Settings such as retries, timeouts and caches.

        Returns
        -------
        store : icechunk.IcechunkStore
        description : dict of str to str
            Where the repository is, and which snapshot was chosen; without secrets.

        Raises
        ------
        RequestError
            If arguments contradict one another.
        UnknownNameError
            If there is no such branch, tag or snapshot; names those that exist.
        OpenError
            If there is no repository, or it cannot be read.
        """
        version = Version.of(branch, tag, snapshot, as_of)
        if type(source).__name__ in ("Session", "ForkSession", "IcechunkStore"):
            _refuse_with_session(version, {"storage_options": storage_options, "virtual": virtual, "config": config})
            return pin_session(getattr(source, "session", source))
        authorized = Authorized.of(virtual)
        if type(source).__name__ == "Repository":
            _refuse(storage_options, "storage_options must be given with a URL, but got an icechunk.Repository as well")
            place = described(source.storage)
            repository = authorize(source, authorized, config)
        else:
            given = Place.of(source)
            with explained(given.text, storage_options):
                repository = _opened(given, storage_options or {}, authorized, config)
            place = described(repository.storage, given)
        return pin(repository, version, place)


def _opened(place: Place, storage_options: Mapping[str, Any], authorized: Authorized, config: Any) -> Any:
    import icechunk

    repository = icechunk.Repository.open(place.storage(storage_options), config=config)
    return authorize(repository, authorized, None)


def _refuse_with_session(version: Version, given: Mapping[str, Any]) -> None:
    named = [*version.given(), *(name for name, value in given.items() if value)]
    if named:
        raise RequestError(
            f"a session must be opened as it is, for it is at one snapshot already, but got {' and '.join(named)} as "
            "well; pass the icechunk.Repository"
        )


def _refuse(value: Any, message: str) -> None:
    if value:
        raise RequestError(f"{message}; leave them out")


opener = IcechunkOpener()

"""Repositories of Arraylake: ``insitu_xr.open_dataset("arraylake://org/repo")``, through the client of Arraylake.

The client asks the service where the repository is and for credentials, which it renews as they expire. What it gives
is an Icechunk repository; the adapter for Icechunk chooses the snapshot.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from insitu_xr.errors import ForbiddenError, InsituError, NotFoundError, OpenError, RequestError

__all__ = ["ArraylakeOpener", "opener"]

_SCHEME = "arraylake://"
#: as the client has it: two characters at least
_NAME = re.compile(r"\w[\w.-]+/\w[\w.-]+", re.ASCII)
#: a user with a password, and a query
_SECRETS = re.compile(r"(?<=://)[^/@\s]*@|\?.*")
_LOGIN = "run `arraylake auth login`, set ARRAYLAKE_TOKEN, or pass token="
_REFUSED = re.compile(r"AccessDenied|Forbidden|InvalidAccessKeyId|SignatureDoesNotMatch|ExpiredToken|InvalidToken")
_SHOWN = 10


class ArraylakeOpener:
    """Opens repositories of Arraylake; found by `insitu_xr.open_dataset` under the scheme ``arraylake``.

    Examples
    --------
    >>> opener.claims("arraylake.txt")
    False
    """

    name = "arraylake"
    schemes = ("arraylake",)
    extra = "arraylake"
    options = frozenset({"token", "service_uri"})

    def claims(self, source: object) -> bool:
        """Nothing without the scheme."""
        return False

    def open(
        self,
        source: str,
        *,
        storage_options: Mapping[str, Any] | None = None,
        token: str | None = None,
        service_uri: str | None = None,
    ) -> tuple[Any, dict[str, str]]:
        """Ask the service for a repository.

        Parameters
        ----------
        source : str
            ``arraylake://org/repo``. Which snapshot is said by ``branch``, ``tag``, ``snapshot`` or ``as_of``.
        storage_options : mapping, optional
            What the client passes on to Icechunk, such as ``network_stream_timeout_seconds``. Credentials come from
            the service.
        token : str, optional
            A token of the service. By default that of ``ARRAYLAKE_TOKEN``, of the configuration of Arraylake, or of the
            last ``arraylake auth login``.
        service_uri : str, optional
            Another service than the configured one.

        Returns
        -------
        repository : icechunk.Repository
        description : dict of str to str
            The place, without secrets.

        Raises
        ------
        RequestError
            If the name or the token has a wrong form.
        ForbiddenError
            If there is no login, or the token is not valid, or does not allow to read the repository.
        NotFoundError
            If there is no such repository; names those of the organisation.
        OpenError
            If the service cannot be reached, or the repository is offline.
        """
        name = _named(source)
        import arraylake

        client = _client(arraylake, service_uri, token)
        try:
            repository = client.get_repo(name, storage_options=dict(storage_options or {}) or None)
        except Exception as error:
            explained = _explained(error, name, client)
            if explained is None:
                raise
            # The texts of the client repeat what the service said, which is not ours to show.
            raise explained from None
        return repository, {"kind": "arraylake", "url": f"{_SCHEME}{name}"}


def _named(source: str) -> str:
    name = str(source).removeprefix(_SCHEME).strip("/")
    if not _NAME.fullmatch(name):
        raise RequestError(
            f"url must be arraylake://organisation/repository, but got {_SECRETS.sub('', str(source))!r}; give a group "
            "within it as group="
        )
    return name


def _client(arraylake: Any, service_uri: Any, token: Any) -> Any:
    if token is not None and (not isinstance(token, str) or not token.startswith(("ema_", "ey"))):
        raise RequestError(
            "token must be a token of Arraylake, which starts with 'ema_', but got something else; create one in its "
            "web application, or leave it out after `arraylake auth login`"
        )
    if service_uri is not None and not str(service_uri).startswith(("http://", "https://")):
        raise RequestError(f"service_uri must start with https://, but got {service_uri!r}; leave it out")
    try:
        return arraylake.Client(service_uri=service_uri, token=token)
    except ValueError:
        # Not with its cause: the configured token may be part of its text.
        raise RequestError(
            f"token must be a token of Arraylake, but that of ARRAYLAKE_TOKEN or of its configuration is none; {_LOGIN}"
        ) from None


def _explained(error: Exception, name: str, client: Any) -> InsituError | None:
    """The error in our words; None for what is not of the client."""
    from arraylake.exceptions import ArraylakeHttpError, AuthException
    from httpx import TransportError

    if isinstance(error, AuthException):
        return ForbiddenError(f"arraylake://{name} must be opened with a login, but got none of use; {_LOGIN}")
    if isinstance(error, ArraylakeHttpError):
        return _refused(error, name, client)
    if isinstance(error, TransportError):
        return OpenError(
            f"the service of Arraylake must answer to open arraylake://{name}, but {client.service_uri} did not "
            f"({type(error).__name__}); check the network, proxies, and service_uri="
        )
    if type(error).__module__ == "icechunk":
        return _unreadable(error, name)
    if isinstance(error, ValueError) and " is offline" in str(error):
        return OpenError(f"arraylake://{name} must be online, but it is offline ({error}); try again later")
    return None


def _unreadable(error: Any, name: str) -> InsituError:
    """The service answered, and the bucket that it named did not give the repository."""
    if error.kind == "repository-not-found":
        return NotFoundError(
            f"arraylake://{name} must hold an Icechunk repository, but its bucket has none; ask its owners"
        )
    refusal = _REFUSED.search(str(error))
    if refusal is not None:
        return ForbiddenError(
            f"the bucket of arraylake://{name} must accept the credentials that Arraylake gives out, but it refuses "
            f"them ({refusal[0]}); ask its owners"
        )
    return OpenError(
        f"the bucket of arraylake://{name} must answer, but it did not ({error.kind}); check the network, and try again"
    )


def _refused(error: Any, name: str, client: Any) -> InsituError:
    status = error.status_code
    request = f", request {error.request_id}" if error.request_id else ""
    if status == 401:
        return ForbiddenError(
            f"the token for arraylake://{name} must be valid, but got one that Arraylake refuses (401{request}), as it "
            f"does with expired and revoked ones; {_LOGIN}"
        )
    if status == 403:
        return ForbiddenError(
            f"the login must be allowed to read arraylake://{name}, but it is not (403{request}); ask the owners "
            "for access, or use the token of another"
        )
    if status == 404:
        return NotFoundError(
            f"url must name a repository of Arraylake, but got arraylake://{name}, which there is not, or not for this "
            f"login (404{request}); {_existing(name.partition('/')[0], client)}"
        )
    return OpenError(
        f"the service of Arraylake must answer to open arraylake://{name}, but it failed (status {status}{request}); "
        "try again later"
    )


def _existing(organisation: str, client: Any) -> str:
    """Name the repositories that there are, if the service tells."""
    try:
        names = sorted(repository.name for repository in client.list_repos(organisation))
    except Exception:  # an organisation that does not exist, or may not be listed: nothing to add
        names = []
    if not names:
        return "check the spelling of both"
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{organisation!r} has {', '.join(map(repr, names[:_SHOWN]))}{more}"


opener = ArraylakeOpener()

"""What stores say, in words that say what to do: beside what real servers are asked in tests/integration."""

from __future__ import annotations

import pytest
from obstore.exceptions import GenericError, PermissionDeniedError

from insitu_xr.errors import ForbiddenError, InsituError, NotFoundError, OpenError, RequestError
from insitu_xr.opening.failures import explain, explaining

NAME = "'s3://bucket/a.zarr'"


@pytest.mark.parametrize(
    ("error", "kind", "told"),
    [
        (GenericError("Error performing PUT http://169.254.169.254/latest/api/token"), ForbiddenError, "but got none"),
        (GenericError("HTTP error: builder error\n url: http://localhost:1"), RequestError, "'allow_http': True"),
        (GenericError("400 Bad Request: <Code>ExpiredToken</Code>"), ForbiddenError, "expired token"),
        (GenericError("404: <Code>NoSuchBucket</Code>"), NotFoundError, "bucket must exist"),
        (GenericError("error sending request\n\nDebug source:\nlong"), OpenError, "(?s)error sending request; check"),
        (ExceptionGroup("reads", [PermissionDeniedError("no")]), ForbiddenError, r"refused \(no\)"),
        (OSError(5, "Input/output error"), OpenError, "Input/output error"),
    ],
    ids=["no credentials", "plain http", "expired", "no bucket", "no answer", "one of several", "system"],
)
def test_what_stores_say(error: Exception, kind: type[InsituError], told: str) -> None:
    found = explain(error, NAME)
    assert type(found) is kind
    with pytest.raises(kind, match=told) as caught:
        raise found
    assert NAME in str(caught.value)
    assert "Debug source" not in str(caught.value)


def test_the_cause_decides_where_the_error_itself_says_little() -> None:
    with pytest.raises(ForbiddenError, match="expired token"), explaining(NAME):
        raise ValueError("cannot open") from GenericError("<Code>ExpiredToken</Code>")


def test_what_does_not_come_from_a_store_passes() -> None:
    assert explain(ValueError("404 things"), NAME) is None
    with pytest.raises(ZeroDivisionError), explaining(NAME):
        raise ZeroDivisionError
    with pytest.raises(RequestError, match="mine"), explaining(NAME):
        raise RequestError("mine")


def test_a_cause_that_holds_a_signature_is_left_out() -> None:
    with pytest.raises(OpenError) as caught, explaining(NAME):
        raise GenericError("GET https://host/a.zarr?sig=SECRET failed")
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__
    assert "SECRET" not in str(caught.value)
    with pytest.raises(OpenError) as plain, explaining(NAME):
        raise GenericError("GET https://host/a.zarr failed")
    assert isinstance(plain.value.__cause__, GenericError)

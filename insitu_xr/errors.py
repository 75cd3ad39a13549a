"""The error tree.

Every message follows one form: ``<thing> must be <rule>, but got <value>; <remedy>``. Each class also descends
from the builtin a caller would expect, so ``except ValueError`` keeps working.
"""

from __future__ import annotations


class InsituError(Exception):
    """Base of every error that insitu_xr raises on purpose."""

    def __str__(self) -> str:
        # KeyError would show its argument's repr, quotes and escapes included.
        return str(self.args[0]) if self.args else ""


class RequestError(InsituError, ValueError):
    """An argument of a request breaks a rule; raised before any data is read."""


class UnknownNameError(InsituError, KeyError):
    """A variable, dimension or label that the dataset does not have."""


class DtypeError(InsituError, TypeError):
    """A variable whose dtype cannot be delivered as asked."""


class ComputedVariableError(InsituError, TypeError):
    """A dask variable on which something other than indexing was computed."""


class UnsupportedSourceError(InsituError, TypeError):
    """A variable whose data cannot be read in place."""


class CeilingError(InsituError, ValueError):
    """The memory ceiling is below what one batch needs."""


class OpenError(InsituError, OSError):
    """A dataset that could not be opened."""


class NotFoundError(OpenError, FileNotFoundError):
    """Nothing is stored at the place."""


class ForbiddenError(OpenError, PermissionError):
    """The store refuses the credentials, or has none to check; also when they have expired."""


class NotZarrError(OpenError, ValueError):
    """Something is stored at the place, but nothing that can be opened."""


class MissingExtraError(InsituError, ImportError):
    """A package that an optional part needs is not installed; the message says what to install."""


class ReadError(InsituError, OSError):
    """A stored chunk could not be read or decoded.

    Attributes
    ----------
    variable : str
        Name of the variable.
    chunk : tuple of int
        Coordinates of the chunk in the grid of the stored array.
    key : str
        Key of the stored object.
    """

    def __init__(self, message: str, *, variable: str, chunk: tuple[int, ...], key: str) -> None:
        super().__init__(message)
        self.variable = variable
        self.chunk = chunk
        self.key = key


class VerificationError(InsituError, AssertionError):
    """A block read in place differs from the same block read by xarray."""


class ClosedError(InsituError, RuntimeError):
    """The loader was used after ``close()``, or in a forked child."""

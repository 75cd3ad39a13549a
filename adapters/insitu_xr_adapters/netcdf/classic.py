"""The dtypes of attributes in a classic netCDF file, which decide what packed values become."""

from __future__ import annotations

from typing import BinaryIO

#: by the number that the format gives each type
_DTYPES = ("i1", "S1", "i2", "i4", "f4", "f8", "u1", "u2", "u4", "i8", "u8")
_SIZES = (1, 1, 2, 4, 4, 8, 1, 2, 4, 8, 8)


class _Header:
    """The header from its start; sizes and offsets are wider in later versions of the format."""

    def __init__(self, reader: BinaryIO) -> None:
        self._reader = reader
        self._version = reader.read(4)[3]
        self.count()  # of records

    def _number(self, width: int) -> int:
        return int.from_bytes(self._reader.read(width), "big")

    def count(self) -> int:
        """Read a number of elements."""
        return self._number(8 if self._version == 5 else 4)

    def entries(self) -> range:
        """Read the head of a list: its tag and its length."""
        self._number(4)
        return range(self.count())

    def name(self) -> str:
        """Read a name."""
        length = self.count()
        return self._reader.read(length + -length % 4)[:length].decode()

    def attributes(self) -> dict[str, str]:
        """Read attributes, and keep the dtypes of those that are numbers."""
        dtypes = {}
        for _ in self.entries():
            name, kind = self.name(), self._number(4) - 1
            size = self.count() * _SIZES[kind]
            self._reader.read(size + -size % 4)
            if _DTYPES[kind] != "S1":
                dtypes[name] = _DTYPES[kind]
        return dtypes

    def variable(self) -> tuple[str, dict[str, str]]:
        """Read a variable."""
        name = self.name()
        for _ in range(self.count()):
            self.count()
        dtypes = self.attributes()
        self._number(4)
        self.count()
        self._number(4 if self._version == 1 else 8)
        return name, dtypes


def classic_attribute_dtypes(reader: BinaryIO) -> dict[str, dict[str, str]]:
    """Read the dtypes of the numeric attributes of every variable.

    Parameters
    ----------
    reader : file
        Standing at the start of a file of version 1, 2 or 5.

    Returns
    -------
    dict
        Dtype by attribute, by variable.
    """
    header = _Header(reader)
    for _ in header.entries():  # dimensions
        header.name()
        header.count()
    header.attributes()
    return dict(header.variable() for _ in header.entries())

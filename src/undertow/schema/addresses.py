"""Addresses of run folders that are not on a disk of this machine: `s3://bucket/run`, `gs://…`, `memory://…`."""

import os
import re

# At least two letters before the colon: `C:/runs` is a disk.
_ADDRESS = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]+):(?P<slashes>/+)(?P<rest>.*)")
_ON_DISK = ("file", "local")


def address_of(path: str | os.PathLike[str]) -> str | None:
    """The address meant, without a slash at its end; None for a path on disk.

    A `Path` made of an address has lost one of its slashes: it is given back.
    """
    match = _ADDRESS.fullmatch(os.fspath(path))
    if match is None:
        return None
    scheme, slashes, rest = match["scheme"].lower(), match["slashes"], match["rest"].rstrip("/")
    if len(slashes) == 1:
        slashes = "///" if scheme in _ON_DISK else "//"
    return f"{scheme}:{slashes}{rest}"

"""A folder behind an address: the five things we do to one, through fsspec."""

from __future__ import annotations

import contextlib
import datetime
import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from undertow.errors import SettingError

_PACKAGES = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "abfs": "adlfs", "az": "adlfs"}
_HAS_FOLDERS = ("file", "local", "sftp", "ssh", "smb", "hdfs", "webhdfs", "ftp", "dbfs")
# Whatever a file system says that changes when a file does.
_VERSION = ("ETag", "etag", "md5Hash", "content_md5", "generation", "mtime", "LastModified", "last_modified", "created")
_MODIFIED = ("LastModified", "last_modified", "mtime", "updated", "created")
_LONGEST_REASON = 200


@dataclass(frozen=True, slots=True)
class RemoteFile:
    size: int
    version: str
    modified: float | None  # seconds since the epoch, where the file system says


class Place:
    """Made without a connection; everything else may raise whatever the file system raises, or hang."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._scheme = address.partition(":")[0]
        self._system: Any = None
        self._root = ""
        try:
            importlib.import_module("fsspec").get_filesystem_class(self._scheme)
        except ImportError as problem:
            package = _PACKAGES.get(self._scheme, "")
            what = f"'undertow[cloud]' {package}".strip()
            raise SettingError(
                f"{address} needs a package that is not installed ({problem})", way_out=f"pip install {what}"
            ) from None
        except ValueError:
            raise SettingError(
                f"fsspec knows no {self._scheme}://", way_out="Use s3://, gs://, az:// or another file system of fsspec"
            ) from None

    def files(self, below: str = "") -> dict[str, RemoteFile]:
        """Every file below, by its path from here."""
        system = self._connected()
        system.invalidate_cache()
        top = f"{self._root}/{below}".rstrip("/")
        found: dict[str, dict[str, Any]] = system.find(top, detail=True)
        return {
            name.removeprefix(self._root).lstrip("/"): _remote_file(information) for name, information in found.items()
        }

    def read(self, name: str) -> bytes:
        return self._connected().cat_file(self._path(name))

    def write(self, name: str, data: bytes) -> None:
        system, path = self._connected(), self._path(name)
        if self._scheme in _HAS_FOLDERS:  # elsewhere, making a folder could make a bucket
            system.makedirs(path.rpartition("/")[0], exist_ok=True)
        system.pipe_file(path, data)

    def remove(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._connected().rm_file(self._path(name))

    def below(self, name: str) -> Place:
        return Place(f"{self.address}/{name}")

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    def _connected(self) -> Any:
        if self._system is None:
            # A cached listing would hide what others, and we, have written since.
            options: dict[str, Any] = {"use_listings_cache": False}
            system, root = importlib.import_module("fsspec.core").url_to_fs(self.address, **options)
            self._system, self._root = system, root.rstrip("/")
        return self._system


def reason_of(problem: BaseException) -> str:
    """Why it failed, in one line of bounded length."""
    text = " ".join(str(problem).split()) or "no reason given"
    text = text if len(text) <= _LONGEST_REASON else f"{text[:_LONGEST_REASON]}…"
    return f"{type(problem).__name__}: {text}"


def _remote_file(information: dict[str, Any]) -> RemoteFile:
    size = int(information.get("size") or 0)
    version = ";".join(f"{key}={information[key]}" for key in _VERSION if information.get(key) is not None)
    return RemoteFile(size, f"{size};{version}", next(_times(information), None))


def _times(information: dict[str, Any]) -> Iterator[float]:
    for key in _MODIFIED:
        moment = information.get(key)
        if isinstance(moment, datetime.datetime):
            yield moment.timestamp()
        elif isinstance(moment, (int, float)):
            yield float(moment)

"""Reading a run behind an address: a copy of it in a cache, brought up to date when asked."""

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from undertow.errors import UnreadableRunError
from undertow.store.cloud.cache import VERSIONS_FILE, cache_folder, make_room
from undertow.store.cloud.place import Place, RemoteFile, reason_of
from undertow.store.cloud.run_files import turn_of
from undertow.store.run_documents import RUN_FILE, replace_file

_SOONEST = 5.0  # seconds between two looks at a run that is still written


class Mirror:
    """The copy of one run. Files whose size and version have not changed are not fetched again."""

    def __init__(self, address: str, folder: Path | None = None) -> None:
        self.address = address
        self.folder = folder or cache_folder(address)
        self._place = Place(address)
        self._looked = -_SOONEST

    def fetch(self, wanted: Callable[[str], bool] = lambda name: True) -> None:
        """Bring the copy up to date. Raises `UnreadableRunError` when the run cannot be reached."""
        try:
            there = self._place.files()
            if RUN_FILE not in there:
                raise UnreadableRunError(
                    f"no run in {self.address}: there is no {RUN_FILE}",
                    way_out="`undertow runs ADDRESS` lists the runs below an address",
                )
            self._forget_all_but(there)
            if self._copy({name: file for name, file in there.items() if wanted(name) and _is_plain(name)}):
                make_room(self.folder)
        except UnreadableRunError:
            raise
        except Exception as problem:
            raise UnreadableRunError(f"{self.address} cannot be read: {reason_of(problem)}") from None
        self._looked = time.monotonic()

    def refresh(self) -> None:
        """The same for somebody who looks often: not too often, and what cannot be reached now stays as it was."""
        if time.monotonic() - self._looked >= _SOONEST:
            self._looked = time.monotonic()
            with contextlib.suppress(UnreadableRunError):
                self.fetch()

    def _copy(self, there: dict[str, RemoteFile]) -> bool:
        """Whether anything was new."""
        versions = self._versions()
        before = dict(versions)
        try:
            # The other way round than they are sent: a frame counts only when all of it can be here.
            for name in sorted(there, key=lambda name: (-turn_of(name), name)):
                file, path = there[name], self.folder / name
                if versions.get(name) == file.version:
                    continue
                path.parent.mkdir(parents=True, exist_ok=True)
                replace_file(path, self._place.read(name))
                if file.modified is not None:  # tells whether a run is still written
                    os.utime(path, (file.modified, file.modified))
                versions[name] = file.version
        finally:
            if self.folder.is_dir():
                replace_file(self.folder / VERSIONS_FILE, msgspec.json.encode(versions))
        return versions != before

    def _forget_all_but(self, there: dict[str, RemoteFile]) -> None:
        """A disk budget takes files away; the copy must not keep them."""
        versions = self._versions()
        for name in versions.keys() - there.keys():
            if _is_plain(name):
                (self.folder / name).unlink(missing_ok=True)

    def _versions(self) -> dict[str, str]:
        try:
            versions = msgspec.json.decode((self.folder / VERSIONS_FILE).read_bytes(), type=dict[str, str])
            return {name: version for name, version in versions.items() if (self.folder / name).exists()}
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            return {}


def _is_plain(name: str) -> bool:
    """A name from elsewhere must not lead out of the folder."""
    parts = name.split("/")
    return all(part and not part.startswith(".") and "\\" not in part for part in parts)

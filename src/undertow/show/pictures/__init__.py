"""Pictures and animations of a run as files: drawn with Pillow, from the same views as every other medium."""

import importlib.util

from undertow.store.exports import MissingPackageError

if importlib.util.find_spec("PIL") is None:
    raise MissingPackageError(
        "pictures need the package Pillow, which is not installed", way_out='pip install "undertow[pictures]"'
    )

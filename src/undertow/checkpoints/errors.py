"""What goes wrong with a checkpoint, for the user."""

from __future__ import annotations

from undertow.errors import UnreadableRunError


class UnreadableCheckpointError(UnreadableRunError):
    """A file, folder or tensor that is no checkpoint, is damaged, or holds what Undertow refuses to load."""

    code = "UT006"

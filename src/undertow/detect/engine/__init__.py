"""What runs the conditions: batches of frames, findings that open and close, and the skipping of calm frames."""

from undertow.detect.engine.engine import Engine
from undertow.detect.engine.ledger import Change, FindingChange

__all__ = ["Change", "Engine", "FindingChange"]

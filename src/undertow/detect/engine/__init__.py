"""What runs the conditions: batches of frames, findings that open and close, and the skipping of calm frames.

A condition needs nothing of the engine but the names below.
"""

from undertow.detect.engine.batch import Flags, FrameBatch
from undertow.detect.engine.condition import Condition, Judgement
from undertow.detect.engine.consecutive import Consecutive, LayerStreak
from undertow.detect.engine.engine import Engine
from undertow.detect.engine.layer_index import LayerIndex
from undertow.detect.engine.ledger import Change, FindingChange
from undertow.detect.engine.limit import Limit
from undertow.detect.engine.per_layer import LayerValues, PerLayer, grown
from undertow.detect.engine.sampling_rounds import PART
from undertow.detect.engine.stage import Stage
from undertow.detect.engine.tracker import Shared, Tracker
from undertow.detect.engine.view import FrameView
from undertow.detect.engine.wake import Wake, changed, having, where, where_scalar

__all__ = [
    "PART", "Change", "Condition", "Consecutive", "Engine", "FindingChange", "Flags", "FrameBatch", "FrameView",
    "Judgement", "LayerIndex", "LayerStreak", "LayerValues", "Limit", "PerLayer", "Shared", "Stage", "Tracker", "Wake",
    "changed", "grown", "having", "where", "where_scalar",
]  # fmt: skip

"""What is different about a watch when the training runs in several processes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from undertow.probe.distributed.topology import RankPlace, rank_now
from undertow.probe.schedule import Governor
from undertow.schema.layers import LayerTable
from undertow.settings import Settings

if TYPE_CHECKING:
    from undertow.probe.distributed.leader import Leader
    from undertow.probe.distributed.shared_schedule import SharedGovernor


def follower_place() -> RankPlace | None:
    """The place of this process if another one writes the run."""
    place = rank_now()
    return None if place is None or place.leads else place


def leader_here(folder: Path, layers: LayerTable, first_step: int) -> Leader | None:
    """What gathers the other ranks' parts; None when this process trains alone."""
    place = rank_now()
    if place is None:
        return None
    from undertow.probe.distributed.leader import Leader

    return Leader(place, layers, {"folder": str(folder.resolve()), "first_step": first_step})


def governor_here(settings: Settings, leader: Leader | None = None) -> Governor:
    if leader is None:
        return Governor(*_given(settings))
    governor = shared_governor(settings)
    governor.announce, leader.merged = leader.set_pace, governor.merged
    return governor


def shared_governor(settings: Settings) -> SharedGovernor:
    from undertow.probe.distributed.shared_schedule import SharedGovernor

    return SharedGovernor(*_given(settings))


def _given(settings: Settings) -> tuple[Any, ...]:
    every = None if settings.every == "auto" else int(settings.every)
    activations = None if settings.activations == "auto" else settings.activations
    return every, settings.budget, activations


def within(seconds: float, work: Callable[[], None]) -> bool:
    """Do this, but wait no longer for it than so many seconds; False when it was not done by then."""
    thread = threading.Thread(target=work, name="undertow closing", daemon=True)
    thread.start()
    thread.join(seconds)
    return not thread.is_alive()

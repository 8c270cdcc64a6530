"""Reading in the background what a step has left on a GPU, without a word to the stream that the training works on.

A copy asked for on that stream waits for everything queued there, and the driver lets nobody queue more meanwhile: the
GPU then runs dry. So a frame carries the moment at which it was complete; the background thread sleeps until then,
and copies on a stream of its own.
"""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager

import torch

Events = tuple[torch.cuda.Event, ...]

_streams: dict[torch.device, torch.cuda.Stream] = {}


def record_events(devices: Iterable[torch.device]) -> Events:
    """What to wait for before reading what has been queued so far; nothing inside a graph being captured."""
    found: list[torch.cuda.Event] = []
    for device in devices:
        with torch.cuda.device(device):
            if not torch.cuda.is_current_stream_capturing():
                event = torch.cuda.Event(blocking=True)
                event.record()
                found.append(event)
    return tuple(found)


@contextmanager
def waited_for(all_events: Iterable[Events]) -> Iterator[None]:
    """Inside, nothing that was complete at these events has to be waited for."""
    last = [one for one in all_events if one][-1:]
    if not last:
        yield
        return
    with ExitStack() as streams:
        for event in last[0]:
            event.synchronize()
            device = event.device
            if device not in _streams:
                _streams[device] = torch.cuda.Stream(device)
            streams.enter_context(torch.cuda.stream(_streams[device]))
        yield

"""Reading in the background what a step has left on a GPU, without a word to the stream that the training works on.

A copy asked for on that stream waits for everything queued there, and the driver lets nobody queue more meanwhile: the
GPU then runs dry. So a frame carries the moment at which it was complete; the background thread sleeps until then,
and copies on a stream of its own.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager

import torch

Events = tuple[torch.cuda.Event, ...]

_streams: dict[torch.device, torch.cuda.Stream] = {}
_current_device: Callable[[], int] = torch.cuda.current_device
_known: tuple[tuple[int, int], torch.cuda.Stream] | None = None  # device, the driver's stream, and torch's


def record_events(devices: Iterable[torch.device]) -> Events:
    """What to wait for before reading what has been queued so far; nothing inside a graph being captured."""
    found: list[torch.cuda.Event] = []
    for device in devices:
        if device.index == _current_device():
            _record(found)
        else:
            with torch.cuda.device(device):
                _record(found)
    return tuple(found)


def _record(found: list[torch.cuda.Event]) -> None:
    if not torch.cuda.is_current_stream_capturing():
        event = torch.cuda.Event(blocking=True)
        event.record(_current_stream())
        found.append(event)


def _current_stream() -> torch.cuda.Stream:
    """Of the current device. To make the object takes longer than everything else here, and it mostly is the same."""
    global _known
    index = _current_device()
    key = index, torch._C._cuda_getCurrentRawStream(index)
    if _known is None or _known[0] != key:
        _known = key, torch.cuda.current_stream()
    return _known[1]


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

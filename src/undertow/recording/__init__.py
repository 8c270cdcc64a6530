"""FROM A FRAME TO A RUN: every frame is judged, written and told of, by one path.

`RunRecording.record` gives frames to a `RunRecorder`, in this process or in a child of it, and tells what came of them.
No torch, apart from the handle of a live training: the child has to start quickly and stay small.
"""

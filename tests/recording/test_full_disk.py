"""A disk that is full where the run is written: frames are dropped and counted, and the training goes on."""

from __future__ import annotations

import resource

from tests.recording.trainings import recorder_process, train

import undertow


def test_a_disk_that_is_full_for_the_other_process(tmp_path):
    """A limit on the size of files stands in for the disk: the other process has it, this one has not."""

    def fill(watch):
        watch._mailbox.flush(30)
        process = recorder_process(watch).pid
        resource.prlimit(process, resource.RLIMIT_FSIZE, (1, 1))

    watch = train(tmp_path / "run", "always", at={40: fill})
    watch.close()
    run = undertow.open_run(tmp_path / "run")
    assert run.steps.tolist()[:40] == list(range(40))
    assert len(run.steps) < 120
    assert watch._run.facts.frames_dropped == 120 - len(run.steps)
    assert watch._run.facts.reasons == []
    assert watch.findings, "what cannot be written is judged all the same"

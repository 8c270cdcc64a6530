"""Ranks that die, or are not watched: the others train to the end and nobody waits for ever."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from tests.distributed import ranks

import undertow


def test_a_rank_that_is_killed_is_left_out(tmp_path: Path) -> None:
    first, second = ranks.start(2, [str(tmp_path), "last_dies"])
    said, _ = first.communicate(timeout=ranks.PATIENCE)
    second.communicate(timeout=ranks.PATIENCE)
    assert second.returncode == -signal.SIGKILL
    assert first.returncode == 0, said
    assert "trained to the end" in said
    run = undertow.open_run(tmp_path / "last_dies")
    assert run.status == "finished"
    assert run.steps.tolist() == list(range(40))
    counted = run.scalars("ranks")
    assert counted[0] == 2.0
    assert counted[-1] == 1.0
    assert any("rank 1 was lost" in reason for reason in run.diagnose().coverage.reasons)


@pytest.mark.slow
def test_without_the_first_rank_the_others_train_on(tmp_path: Path) -> None:
    first, second = ranks.start(2, [str(tmp_path), "first_dies"])
    said, _ = second.communicate(timeout=ranks.PATIENCE)
    first.communicate(timeout=ranks.PATIENCE)
    assert first.returncode == -signal.SIGKILL
    assert second.returncode == 0, said
    assert "trained to the end" in said
    assert said.count("rank 1 is not watched any more") == 1
    assert "the first rank is gone" in (tmp_path / "first_dies" / "events-rank1.jsonl").read_text()


@pytest.mark.slow
def test_those_who_send_by_way_of_a_rank_that_is_killed_train_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BRANCHES", "2")
    processes = ranks.start(4, [str(tmp_path), "third_dies"])
    said = [process.communicate(timeout=ranks.PATIENCE)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0, -signal.SIGKILL, 0], said
    assert all("trained to the end" in said[rank] for rank in (0, 1, 3))
    assert "rank 3 is not watched any more (rank 2, which it sends to, is gone)" in said[3]
    run = undertow.open_run(tmp_path / "third_dies")
    assert run.steps.tolist() == list(range(40))
    counted = run.scalars("ranks")
    assert counted[0] == 4.0
    assert counted[-1] == 2.0
    assert any("rank 2 was lost while training: what it and the 1 that" in r for r in run.diagnose().coverage.reasons)


@pytest.mark.slow
def test_a_watch_on_the_first_rank_alone_speaks_for_its_replicas(tmp_path: Path) -> None:
    ranks.run(2, tmp_path, "only_the_first")
    run = undertow.open_run(tmp_path / "only_the_first")
    assert run.steps.tolist() == list(range(6))
    assert any("rank 1 is not watched" in reason for reason in run.diagnose().coverage.reasons)

"""What the soak allows to grow: the index of a run, and nothing that is asked of it."""

from pathlib import Path

import pytest
from tests.store.small_runs import frame, new_writer

from benchmarks.soak.__main__ import report
from benchmarks.soak.open_runs import growth, held_by


def test_an_index_grows_by_few_bytes_per_step(tmp_path: Path):
    writer = new_writer(tmp_path / "run")

    def held_after(first: int, last: int):
        for sequence in range(first, last):
            writer.append(frame(sequence, 3))
        return held_by(tmp_path / "run")

    half, whole = held_after(0, 1000), held_after(1000, 2000)
    writer.close()
    assert (half.steps, whole.steps) == (1000, 2000)
    assert 50 < 1e6 * growth(half, whole) / 1000 < 250
    assert growth(whole, half) == 0, "a run that was thinned does not make up for a leak"


@pytest.mark.parametrize(("must_grow", "is_flat"), [({}, False), ({"dashboard": 10.0}, True), ({"other": 10.0}, False)])
def test_only_who_holds_the_index_may_grow_by_it(must_grow: dict[str, float], is_flat: bool):
    times = [float(second) for second in range(600)]
    taken = {("dashboard", "RSS MB"): [100 + second * 15 / 400 for second in times]}
    assert report(times, taken, must_grow, [1.0], 5_000_000) is is_flat

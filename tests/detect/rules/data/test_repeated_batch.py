"""DAT005 on frames made by hand: the same batch at every step."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
from tests.detect.stacks import training

from undertow.detect.rules.data.repeated_batch import RepeatedBatch
from undertow.schema import Repeat


class TestRepeatedBatch:
    def run(self, repeated: float, inputs: Iterable[float], **more: float) -> list[str]:
        run = training(RepeatedBatch)
        for number in inputs:
            given = {"input_mean": number, "input_std": 1.0, "input_max_abs": 3.0} if number == number else {}
            run.run(
                1,
                scalars={
                    "loss": 1.0,
                    "targets_repeated": repeated,
                    "loss_rows": 64.0,
                    "input_moved": 1.0,
                    **given,
                    **more,
                },
            )
        return run.codes()

    def test_one_batch_loaded_again_and_again(self) -> None:
        assert self.run(Repeat.SAME_VALUES, [0.25] * 12) == ["DAT005"]

    def test_all_data_in_one_tensor_is_a_choice(self) -> None:
        assert self.run(Repeat.SAME_TENSOR, [0.25] * 40) == []
        assert self.run(Repeat.SAME_VALUES, [0.25] * 40, loss_rows=1500.0) == []

    def test_the_same_labels_of_other_inputs(self) -> None:
        assert self.run(Repeat.SAME_VALUES, np.linspace(0.1, 0.2, 40)) == []

    def test_targets_that_are_picked_anew_from_the_same_inputs(self) -> None:
        assert self.run(Repeat.SAME_VALUES, [0.25] * 40, input_moved=0.0) == []

    def test_tokens_cannot_be_told(self) -> None:
        assert self.run(Repeat.SAME_VALUES, [math.nan] * 40) == []

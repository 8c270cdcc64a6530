"""Transformers: `Trainer(…, callbacks=[UndertowCallback()])`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from undertow.errors import UndertowError
from undertow.integrations.numbers import single_numbers
from undertow.watch import Watch, watch

if TYPE_CHECKING:
    from transformers import TrainerCallback
else:
    try:
        from transformers import TrainerCallback
    except ImportError:
        raise UndertowError("Transformers is not installed", way_out="pip install transformers") from None


class UndertowCallback(TrainerCallback):
    """Watches each `train`. Arguments are those of `undertow.watch`; `watch` is its handle while the training lasts.

    Gradients are recorded before the trainer clips them and again as the optimizer gets them.
    """

    def __init__(self, **settings: Any) -> None:
        self._settings = settings
        self.watch: Watch | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        if self.watch is not None:
            self.watch.close()  # a training that raised has no end
        self.watch = watch(model, **self._settings)

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **kwargs: Any) -> None:
        if self.watch is not None:
            self.watch.log(**single_numbers(metrics or {}, prefix="eval"))

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.watch is not None:
            self.watch.close()

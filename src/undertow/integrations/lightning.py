"""Lightning: `Trainer(callbacks=[UndertowCallback()])`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from undertow.errors import UndertowError
from undertow.integrations.numbers import single_numbers
from undertow.recording.script_error import described
from undertow.schema import RunStatus
from undertow.watch import Watch, watch

if TYPE_CHECKING:
    from lightning.pytorch import Callback
else:
    # The same trainer under two names; a callback must be of the one that the user imported.
    try:
        if "pytorch_lightning" in sys.modules and "lightning" not in sys.modules:
            from pytorch_lightning import Callback
        else:
            from lightning.pytorch import Callback
    except ImportError:
        try:
            from pytorch_lightning import Callback
        except ImportError:
            raise UndertowError("Lightning is not installed", way_out="pip install lightning") from None


class UndertowCallback(Callback):
    """Watches each `fit`. Arguments are those of `undertow.watch`; `watch` is its handle while the fit lasts.

    Gradients are recorded before Lightning clips them and again as the optimizer gets them. Numbers that the module
    logs in validation are kept too.
    """

    def __init__(self, **settings: Any) -> None:
        self._settings = settings
        self.watch: Watch | None = None

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        self.watch = watch(pl_module, **self._settings)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        if self.watch is not None and not trainer.sanity_checking:
            self.watch.log(**single_numbers(trainer.callback_metrics, prefix="val"))

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        interrupted = isinstance(exception, KeyboardInterrupt)
        self._close(RunStatus.INTERRUPTED if interrupted else RunStatus.FAILED, described(exception))

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        self._close(RunStatus.FINISHED)

    def _close(self, status: RunStatus, message: str = "") -> None:
        if self.watch is not None:
            self.watch.close(status, message)

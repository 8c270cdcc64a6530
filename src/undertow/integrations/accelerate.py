"""Accelerate: `Accelerator(log_with=UndertowTracker())` and `accelerator.init_trackers(…)`, as for any tracker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from undertow.errors import UndertowError
from undertow.integrations.numbers import single_numbers
from undertow.watch import Watch, watch

if TYPE_CHECKING:
    from accelerate.tracking import GeneralTracker
else:
    try:
        from accelerate.tracking import GeneralTracker
    except ImportError:
        raise UndertowError("Accelerate is not installed", way_out="pip install accelerate") from None


class UndertowTracker(GeneralTracker):
    """Watches from `init_trackers` to `end_training`. Arguments are those of `undertow.watch`.

    Without a model it finds what the optimizers of this process train. What is passed to `accelerator.log` is kept
    where it is a single number.
    """

    name = "undertow"
    requires_logging_directory = False
    main_process_only = False

    def __init__(self, model: Any = None, **settings: Any) -> None:
        super().__init__(_blank=True)
        self._model = model
        self._settings = settings
        self._watch: Watch | None = None

    @property
    def tracker(self) -> Watch | None:
        return self._watch

    def start(self) -> None:
        if self._watch is None:
            self._watch = watch(self._model, **self._settings)

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Its numbers, at the first step, by names that no quantity has."""
        self.start()
        if self._watch is not None:
            self._watch.log(**{f"config_{name}": number for name, number in single_numbers(values).items()})

    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """At Undertow's own step, the number of optimizer steps so far: loops count in different ways."""
        if self._watch is not None:
            self._watch.log(**single_numbers(values))

    def finish(self) -> None:
        if self._watch is not None:
            self._watch.close()

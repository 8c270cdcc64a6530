"""The health of a training as a test.

    from undertow import assert_trains_healthy

    def test_training_is_healthy():
        assert_trains_healthy(lambda: train(steps=60))

In pytest it is also a fixture of that name (`pytest_plugin.py`); it works as well under any other runner of tests.
"""

from __future__ import annotations

import io
import tempfile
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from undertow.errors import SettingError
from undertow.schema import Severity
from undertow.schema.codes import CODES

if TYPE_CHECKING:
    from undertow.run import Run
    from undertow.schema.findings import Diagnosis, Finding

WIDTH = 100  # columns of the report in a failed test


def assert_trains_healthy(
    train: Callable[[], object],
    *,
    fail_on: str = Severity.MODERATE,
    ignore: str | Collection[str] = (),
    least_steps: int = 1,
    run_dir: str | Path | None = None,
    every: int | str = 1,
    **settings: Any,
) -> Diagnosis:
    """Call `train` and fail with the diagnosis if anything at or above the severity `fail_on` is found.

    `ignore` is a code, or several, that this training is allowed to show. `least_steps` guards against a training
    that ends before anything could be seen. Every step is measured, so that the verdict does not depend on how busy
    the machine is. Further arguments are those of `undertow.watch`; without a model it finds what is trained.
    """
    __tracebackhide__ = True
    allowed = {ignore} if isinstance(ignore, str) else set(ignore)
    least = _severity(fail_on)
    for code in sorted(allowed - CODES.keys()):
        raise SettingError(f"ignore names {code!r}, which is no code", way_out="`undertow explain` lists all codes")
    from undertow.watch import watch

    folder = Path(run_dir or Path(tempfile.mkdtemp(prefix="undertow-")) / "run")
    with watch(run_dir=folder, every=every, quiet=settings.pop("quiet", True), **settings) as watched:
        train()
    run = watched.run
    diagnosis = run.diagnose()
    if diagnosis.steps.recorded < least_steps:
        reasons = "; ".join(diagnosis.coverage.reasons)
        raise AssertionError(
            f"The training took {diagnosis.steps.recorded} optimizer steps; at least {least_steps} were expected. "
            f"{reasons}".rstrip()
        )
    found = [one for one in diagnosis.findings if one.severity.rank >= least.rank and one.code not in allowed]
    if found:
        raise AssertionError(_explanation(run, diagnosis, found))
    return diagnosis


def _severity(name: str) -> Severity:
    try:
        return Severity(name)
    except ValueError:
        names = ", ".join(Severity)
        raise SettingError(f"fail_on is {name!r}, which is no severity", way_out=f"Use one of {names}") from None


def _explanation(run: Run, diagnosis: Diagnosis, found: list[Finding]) -> str:
    from rich.console import Console

    from undertow.show.report.text import report

    page = io.StringIO()
    Console(file=page, width=WIDTH, no_color=True).print(report(diagnosis, tensors=run.layers.paths))
    codes = ", ".join(dict.fromkeys(finding.code for finding in found))
    return f"The training is not healthy: {codes}\n\n{page.getvalue()}\nThe run is kept: undertow report {run.folder}"

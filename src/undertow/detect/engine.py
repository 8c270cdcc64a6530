"""Frames in, findings out: the same verdicts while a run is written and when it is read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import ClassVar

import numpy as np

from undertow.detect.layout import Layout
from undertow.detect.loss_trend import ANOTHER_TRAINING, LossTrend
from undertow.detect.rule import (
    Pace,
    Rule,
    Said,
    Verdict,
    attend,
    is_attentive,
    is_of_one_training,
    is_patient,
    pace_of,
)
from undertow.detect.rules import RULES
from undertow.detect.stretch import Stretch, stretches
from undertow.detect.view import View
from undertow.schema.codes import CODES
from undertow.schema.findings import Finding
from undertow.schema.frames import Frame
from undertow.schema.graph import LayerGraph
from undertow.schema.layers import LayerTable

_EVERY_FRAME = 64  # steps at the start of which every rule sees every frame
_FEW = 6  # frames; below this, looking at them together costs more than one by one


class Change(StrEnum):
    OPENED = "opened"
    UPDATED = "updated"  # other layers, or a higher severity; not merely one more step
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class FindingChange:
    change: Change
    finding: Finding
    key: str = ""  # which condition of the rule; a code can have several


@dataclass(slots=True)
class _Case:
    """A condition of a rule that has held at least once."""

    finding: Finding
    verdict: Verdict
    last_step: int
    ongoing: bool = True

    def current(self) -> Finding:
        if self.finding.last_step != self.last_step or self.finding.ongoing != self.ongoing:
            self.finding = replace(self.finding, last_step=self.last_step, ongoing=self.ongoing)
        return self.finding


class Engine:
    """Feeds every frame to every rule and keeps one finding per rule and condition."""

    strict: ClassVar[bool] = False  # for tests: an error in a rule is raised

    def __init__(self, rules: Sequence[Rule] | None = None) -> None:
        self._rules: list[Rule] = [rule() for rule in RULES] if rules is None else list(rules)
        self._layout = Layout()
        self._losses = LossTrend()
        self.broken: dict[str, str] = {}  # codes of rules that stumbled, and over what
        self._paces = [pace_of(rule) for rule in self._rules]
        self._shown: dict[Pace, int] = {pace: -1 for pace in self._paces if pace is not None}  # the latest step
        self._cases: dict[tuple[str, str], _Case] = {}

    def set_layers(self, layers: LayerTable, graph: LayerGraph) -> None:
        """Before the first frame, and again whenever the table grows or learns more."""
        self._layout = Layout(layers, graph)
        for rule in self._rules:
            rule.grow(self._layout.count)

    def observe(self, frame: Frame) -> list[FindingChange]:
        changes: list[FindingChange] = []
        count = self._layout.count
        for block in frame.blocks.values():
            if len(block.layer_ids) and int(block.layer_ids.max()) >= count:
                return changes  # layers that no table names: nothing can be said of them
        view = View(frame, self._layout)
        changes += self._begin_anew(frame)
        with np.errstate(all="ignore"):  # a division by zero must not print into the user's terminal
            view.loss = self._losses.observe(frame)
            resting = {pace for pace in self._shown if not self._is_due(pace, frame)}
            for rule, pace in zip(self._rules, self._paces):
                if pace in resting or rule.code in self.broken:
                    continue
                try:
                    said = rule.observe(view)
                except Exception as error:
                    self._leave_out(rule, error)
                    continue
                for verdict in said:
                    change = self._settle(rule.code, verdict, frame.step)
                    if change is not None:
                        changes.append(change)
        return changes

    def observe_many(self, frames: Sequence[Frame]) -> list[tuple[Frame, list[FindingChange]]]:
        """As `observe` for one frame after the other, at a fraction of the cost while nothing is wrong. Only frames
        at which something changed are listed.
        """
        return list(self.changes(frames))

    def changes(self, frames: Sequence[Frame]) -> Iterator[tuple[Frame, list[FindingChange]]]:
        """As `observe_many`, for who asks what is `beside` a change: that is what was found up to its frame, however
        many came with it. To be taken to the end: frames are judged as they are asked for.
        """
        if len(frames) < _FEW:
            for frame in frames:
                if changes := self.observe(frame):
                    yield frame, changes
            return
        for stretch in stretches(frames, self._layout):
            verdicts: dict[int, list[tuple[str, Verdict]]] = {}
            closed = self._begin_anew(stretch.frames[0])
            with np.errstate(all="ignore"):
                stretch.losses = [self._losses.observe(frame) for frame in stretch.frames]
                shown = self._thinned(stretch)
                for rule, pace in zip(self._rules, self._paces):
                    if rule.code in self.broken:
                        continue
                    try:
                        spoken = self._hear(rule, stretch if pace is None else shown[pace])
                    except Exception as error:
                        self._leave_out(rule, error)
                        continue
                    for place, said in spoken:
                        verdicts.setdefault(place, []).extend((rule.code, verdict) for verdict in said)
            for place in sorted({*verdicts, 0} if closed else verdicts):
                frame = stretch.frames[place]
                settled = [self._settle(code, verdict, frame.step) for code, verdict in verdicts.get(place, ())]
                changes = [*(closed if place == 0 else ()), *(change for change in settled if change is not None)]
                if changes:
                    yield frame, changes

    def _hear(self, rule: Rule, stretch: Stretch) -> list[Said]:
        """What a rule says of the frames of a stretch, where it says anything."""
        if not len(stretch):
            return []
        if is_attentive(rule):
            spoken = rule.attend(stretch)
        elif is_patient(rule):
            spoken = attend(rule, stretch)
        else:
            observe = rule.observe
            spoken = ((place, observe(view)) for place, view in enumerate(stretch.views()))
        return [(stretch.places[place], said) for place, said in spoken if said]

    def _begin_anew(self, frame: Frame) -> list[FindingChange]:
        """Where another training begins in the same run, rules about the course of one forget the one before."""
        if frame.scalars.get(ANOTHER_TRAINING) != 1:
            return []
        forgetful = {rule.code for rule in self._rules if is_of_one_training(rule)}
        for place, rule in enumerate(self._rules):
            if rule.code in forgetful:
                self._rules[place] = type(rule)()
                self._rules[place].grow(self._layout.count)
        over = [place for place, case in self._cases.items() if place[0] in forgetful and case.ongoing]
        settled = [self._settle(code, Verdict(key, holds=False), frame.step) for code, key in over]
        return [change for change in settled if change is not None]

    def _leave_out(self, rule: Rule, error: Exception) -> None:
        """A rule that stumbles is left out from then on; the others go on."""
        if self.strict:
            raise error
        self.broken[rule.code] = f"{type(error).__name__}: {error}"

    def _thinned(self, stretch: Stretch) -> dict[Pace, Stretch]:
        """What rules are shown of it that need not see every frame."""
        out: dict[Pace, Stretch] = {}
        for pace in self._shown:
            places = [place for place, frame in enumerate(stretch.frames) if self._is_due(pace, frame)]
            out[pace] = stretch if len(places) == len(stretch) else stretch.part(places)
        return out

    def _is_due(self, pace: Pace, frame: Frame) -> bool:
        """Rules about slow conditions need not see every frame of a long run; which ones depends on steps alone."""
        if pace[0] not in frame.blocks:
            return True
        last, step = self._shown[pace], frame.step
        if step >= _EVERY_FRAME and last < step < last + pace[1]:
            return False
        self._shown[pace] = step
        return True

    def findings(self) -> list[Finding]:
        """Everything found so far, in the order it was first found."""
        return [case.current() for case in self._cases.values()]

    def beside(self, change: FindingChange) -> list[Finding]:
        """All findings but the one that changed."""
        mine = (change.finding.code, change.key)
        return [case.current() for place, case in self._cases.items() if place != mine]

    def gaps(self) -> list[str]:
        """What was not judged to the end, in words."""
        return [f"{code} was not judged to the end: its rule stumbled over {why}" for code, why in self.broken.items()]

    def recall(self, changes: Iterable[FindingChange], *, adopt: bool) -> None:
        """Take over what an engine saw that watched the run live, from its journal.

        It saw every frame; a disk budget may since have thinned them. Its steps stand where they are earlier;
        with `adopt`, so do findings that the frames left cannot show any more.
        """
        for change in changes:
            found, place = change.finding, (change.finding.code, change.key)
            case = self._cases.get(place)
            if case is None:
                if adopt:
                    self._cases[place] = _Case(found, Verdict(change.key), found.last_step, found.ongoing)
                continue
            mine = case.current()
            case.finding = replace(
                mine,
                first_step=min(mine.first_step, found.first_step),
                detected_step=min(mine.detected_step, found.detected_step),
            )

    def _settle(self, code: str, verdict: Verdict, step: int) -> FindingChange | None:
        case = self._cases.get((code, verdict.key))
        if not verdict.holds:
            if case is None or not case.ongoing:
                return None
            case.ongoing = False
            return FindingChange(Change.CLOSED, case.current(), verdict.key)
        if case is None:
            finding = self._finding(code, verdict, detected_step=step)
            self._cases[code, verdict.key] = _Case(finding, verdict, step)
            return FindingChange(Change.OPENED, finding, verdict.key)
        case.last_step = step
        reopened = not case.ongoing
        case.ongoing = True
        if verdict is case.verdict:
            return FindingChange(Change.UPDATED, case.current(), verdict.key) if reopened else None
        before, case.verdict = case.finding, verdict
        after = self._finding(code, verdict, before.detected_step)
        # A finding is as bad as it ever was, and begins where it first began.
        worst = max(before.severity, after.severity, key=lambda severity: severity.rank)
        case.finding = replace(
            after, first_step=min(before.first_step, after.first_step), severity=worst, last_step=step
        )
        news = reopened or after.layers != before.layers or worst != before.severity
        return FindingChange(Change.UPDATED, case.finding, verdict.key) if news else None

    def _finding(self, code: str, verdict: Verdict, detected_step: int) -> Finding:
        return Finding(
            code=code,
            name=CODES[code],
            severity=verdict.severity,
            layers=tuple(self._layout.path(i) for i in verdict.layers),
            first_step=verdict.first_step,
            detected_step=detected_step,
            last_step=detected_step,
            ongoing=True,
            confidence=verdict.confidence,
            summary=verdict.summary,
            evidence=verdict.evidence,
        )

"""Recorded runs of the corpus: what they are, and what the rules of this tree say of them. No torch, no training."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import undertow
from undertow.demos.case import Case, Fault
from undertow.schema import Diagnosis, Finding

TRUTH = "truth.json"  # beside the run's own files
Condition = tuple[str, str]  # code and variant
Replayed = dict[str, Any]


def recorded_runs(folder: Path, tiers: Iterable[str] = ()) -> list[Path]:
    """The folders of runs, `<tier>/<case>`; one that is still being recorded is left out."""
    wanted = set(tiers)
    return sorted(
        path.parent
        for path in folder.glob(f"*/*/{TRUTH}")
        if path.parent.suffix != ".part" and (not wanted or path.parts[-3] in wanted)
    )


def truth_of(run: Replayed) -> Case:
    known = run["truth"]
    return Case(
        known["case"],
        "",
        known["steps"],
        _not_to_be_trained,
        tier=known["tier"],
        codes=tuple(known["codes"]),
        layers=frozenset(known["layers"]),
        onset=known["onset"],
        twin=known["twin"],
    )


def _not_to_be_trained(steps: int, seed: int, fault: Fault) -> dict[str, float]:
    raise RuntimeError("a recorded run is replayed, not trained")


def replay_all(folders: list[Path], jobs: int = 1, ablate: bool = False) -> Iterator[Replayed]:
    """In the order of the folders."""
    if jobs <= 1:
        yield from (replay(folder, ablate) for folder in folders)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(replay, folders, [ablate] * len(folders), chunksize=4)


def replay(folder: Path, ablate: bool = False) -> Replayed:
    """One run judged again. With `ablate`, also without each of the conditions that were found in it."""
    truth = json.loads((folder / TRUTH).read_text())
    run = undertow.open_run(folder)
    # The journal holds what the rules of another day said: where some frames are empty, a run would adopt it.
    run._engine.recall = lambda changes, *, adopt: None  # type: ignore[method-assign]
    diagnosis = run.diagnose()
    found = conditions(run)
    owners = {layer.group or layer.path for layer in run.layers.parameters}
    result: Replayed = {
        "tier": truth["tier"], "case": truth["case"], "seed": truth.get("seed", 0), "metrics": truth["metrics"],
        "truth": truth, "status": str(run.status), "recorded": diagnosis.steps.recorded,
        "judges": {"Undertow": reports(diagnosis)}, "diagnosis": _as_json(diagnosis),
        "fault_lines": truth.get("fault_lines", []),
    }  # fmt: skip
    guilty = truth_of(result)
    result["random_layer"] = sum(guilty.accepts(owner) for owner in owners) / max(1, len(owners))
    if ablate:
        result["without"] = [
            (*one, reports(_diagnosed(run, [finding for other, finding in found if other != one])))
            for one in dict.fromkeys(condition for condition, _ in found)
        ]
    return result


def conditions(run: undertow.Run) -> list[tuple[Condition, Finding]]:
    """What the engine found, before it is explained and ranked, each with the condition that raised it."""
    return [((finding.code, finding.variant), finding) for finding in run._engine.findings()]


def _diagnosed(run: undertow.Run, findings: list[Finding]) -> Diagnosis:
    """The diagnosis if the engine had found this and no more."""
    run.__dict__.pop("_diagnosis", None)  # what is remembered
    run._engine.findings = lambda: findings  # type: ignore[method-assign]
    return run.diagnose()


def reports(diagnosis: Diagnosis) -> list[dict[str, Any]]:
    """What a judge said, in the shape that is scored."""
    return [
        {
            "codes": [finding.code], "step": finding.detected_step, "layers": [str(p) for p in finding.layers[:8]],
            "alarm": finding.severity.is_alarm, "confidence": finding.confidence, "severity": str(finding.severity),
            "source": [[str(Path(one.file).resolve()), one.line, one.end_line, one.role] for one in finding.source],
        }
        for finding in diagnosis.findings
    ]  # fmt: skip


def _as_json(diagnosis: Diagnosis) -> dict[str, Any]:
    """All that rules and explanations decide; not the version, nor what watching cost."""
    findings = [{**asdict(finding), "severity": str(finding.severity)} for finding in diagnosis.findings]
    return {
        "health": None if diagnosis.health is None else str(diagnosis.health),
        "story": diagnosis.story,
        "reasons": list(diagnosis.coverage.reasons),
        "findings": findings,
    }

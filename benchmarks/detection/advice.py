"""What a user of each faulty program is told to do, beside what would have mended it: to be read by a person.

`python -m benchmarks.detection.advice FILE [--tier loops]`, FILE from `python -m benchmarks.detection --record FILE`
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.detection.cases import load
from undertow.schema import Diagnosis


def advice_of(diagnosis: Diagnosis) -> dict[str, str] | None:
    """The first finding and its first remedy, if there is an alarm."""
    first = next(iter(diagnosis.findings), None)
    if first is None or not first.severity.is_alarm:
        return None
    remedy = next(iter(first.remedies), None)
    return {
        "finding": f"{first.code} {first.variant}: {first.summary}",
        "what": "" if remedy is None else remedy.what,
        "how": "" if remedy is None else remedy.how,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--tier", default="", help="only this one")
    arguments = parser.parse_args()
    records = list(map(json.loads, arguments.file.read_text().splitlines()))
    wanted = [one for one in records if arguments.tier in ("", one["tier"]) and one["seed"] == 0 and "recorded" in one]
    for record in sorted(wanted, key=lambda one: (one["tier"], one["case"])):
        case = load(record["tier"])[record["case"]]
        if case.is_sick:
            print(_entry(record, f"{case.summary} Mended by: {case.change} [{', '.join(case.codes)}]"))
    return 0


def _entry(record: dict[str, Any], truth: str) -> str:
    advice = record["advice"]
    lines = [f"## {record['tier']}/{record['case']}", f"truth:  {truth}"]
    if advice is None:
        return "\n".join([*lines, "said:   nothing to act on", ""])
    how = advice["how"].replace("\n", "\n        ")
    return "\n".join([*lines, f"said:   {advice['finding']}", f"remedy: {advice['what']}", f"        {how}", ""])


if __name__ == "__main__":
    sys.exit(main())

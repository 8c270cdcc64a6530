"""How often rules alarm on healthy trainings, as it was measured last, over programs that no rule had been tuned on.

`python -m benchmarks.detection --tier validation` prints what goes in here, under "alarms on healthy runs, by code". It
is measured whenever a new held-out tier is read: benchmarks/results has the tables.
"""

import math

MEASURED = "2026-11-16"
RUNS, PROGRAMS = 534, 178
ALARMED_RUNS = {"UPD002": 3, "GRD003": 3, "GRD002": 2, "DAT004": 1}  # none of any other rule


def sentence(code: str) -> str:
    """What was measured of one rule, and up to which rate that leaves open."""
    runs = ALARMED_RUNS.get(code, 0)
    many = "No false alarm" if runs == 0 else "False alarms" if runs > 1 else "A false alarm"
    return (
        f"{many} in {f'{runs} of ' if runs else ''}{RUNS} runs of {PROGRAMS} healthy programs that no rule had been "
        f"tuned on, measured on {MEASURED}: at most {_upper(runs, RUNS):.1%} of such runs, with 95 % confidence."
    )


def _upper(found: int, of: int) -> float:
    """The upper end of Wilson's interval."""
    z = 1.96
    share = found / of
    middle = share + z * z / (2 * of)
    return (middle + z * math.sqrt(share * (1 - share) / of + z * z / (4 * of * of))) / (1 + z * z / of)

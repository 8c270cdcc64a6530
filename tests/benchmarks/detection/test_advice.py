"""The list of advice beside the truth, that a person reads."""

import json
import sys

from benchmarks.detection import advice


def test_each_faulty_program_is_listed_with_what_its_user_was_told(tmp_path, monkeypatch, capsys):
    said = {"finding": "ACT001 dead-units: Never active.", "what": "Use a leaky one.", "how": "a = 1\nb = 2"}
    base = {"tier": "development", "seed": 0, "recorded": 100}
    records = [
        {**base, "case": "dead_relu", "advice": said},
        {**base, "case": "deep_sigmoid", "advice": None},
        {**base, "case": "dead_relu (twin)", "advice": None},
        {**base, "case": "dead_relu", "seed": 1, "advice": said},
    ]
    file = tmp_path / "runs.jsonl"
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    monkeypatch.setattr(sys, "argv", ["advice", str(file)])
    assert advice.main() == 0
    first, second = capsys.readouterr().out.rstrip().split("\n\n")
    assert first.startswith("## development/dead_relu\ntruth:  A bias of")
    assert first.endswith("remedy: Use a leaky one.\n        a = 1\n        b = 2")
    assert second.endswith("said:   nothing to act on")

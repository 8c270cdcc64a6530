"""Marks of the lines at fault find their cases."""

from corpus.fault_lines import fault_lines
from corpus.registry import sick_cases


def test_every_patient_has_its_line():
    cases = sick_cases("development").values()
    assert [case.name for case in cases if not fault_lines(case)] == []


def test_a_mark_is_of_the_case_it_stands_in():
    ((file, line),) = fault_lines(sick_cases("development")["forgotten_detach"])
    assert file.endswith("demos/gradients.py")
    with open(file, encoding="utf-8") as text:
        assert "x = x.detach()" in text.readlines()[line - 1]

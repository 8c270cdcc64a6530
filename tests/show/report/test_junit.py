"""A judged run as the XML that CI servers read."""

from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st
from tests.show.report.test_sarif import finding

from undertow.schema import Diagnosis, Health, Severity, StepRange
from undertow.show.report.junit import to_junit

SEVERE, INFO = finding("OPT001", Severity.SEVERE, "head"), finding("UPD004", Severity.INFO)
DIAGNOSIS = Diagnosis("0.1.0", "example", StepRange(0, 9, 10), Health.PROBLEMS, None, "story", (SEVERE, INFO))


def test_findings_that_fail_and_those_that_do_not() -> None:
    suite = ElementTree.fromstring(to_junit(DIAGNOSIS, [SEVERE], ""))
    assert {name: suite.get(name) for name in ("tests", "failures", "errors")} == {
        "tests": "3", "failures": "1", "errors": "0",
    }  # fmt: skip
    run, failed, passed = suite
    assert (run.get("name"), len(run)) == ("example", 0)
    failure = failed.find("failure")
    assert failure is not None
    assert (failure.get("type"), failure.get("message")) == ("severe", "It fell apart.")
    assert "lr=1e-3" in (failure.text or "")
    assert passed.find("failure") is None


def test_a_run_that_cannot_be_judged_is_an_error() -> None:
    suite = ElementTree.fromstring(to_junit(replace(DIAGNOSIS, findings=()), [], "the run is not finished (killed)"))
    (case,) = suite
    error = case.find("error")
    assert suite.get("errors") == "1"
    assert error is not None
    assert "killed" in (error.get("message") or "")


@given(st.text(st.characters(codec="utf-8")))
def test_any_text_is_xml(text: str) -> None:
    odd = replace(SEVERE, summary=text, layers=(text,))
    (_, case) = ElementTree.fromstring(to_junit(replace(DIAGNOSIS, run=text, findings=(odd,)), [odd], ""))
    assert case.find("failure") is not None

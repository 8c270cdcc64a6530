"""A judged run as JUnit XML: what CI servers draw as a list of tests."""

import re
from collections.abc import Collection
from xml.etree import ElementTree

from undertow.schema import Diagnosis, Finding


def to_junit(diagnosis: Diagnosis, failing: Collection[Finding], unknown: str) -> str:
    """A test for the run itself, which errs where it cannot be judged, and one for each finding."""
    suite = ElementTree.Element(
        "testsuite",
        name="undertow",
        tests=str(1 + len(diagnosis.findings)),
        failures=str(len(failing)),
        errors=str(int(bool(unknown))),
        skipped="0",
    )
    run = ElementTree.SubElement(suite, "testcase", classname="undertow", name=_text(diagnosis.run))
    if unknown:
        ElementTree.SubElement(run, "error", message=_text(f"cannot judge: {unknown}"))
    for finding in diagnosis.findings:
        name = f"{finding.code} {finding.name} {', '.join(finding.layers[:3])}".rstrip()
        case = ElementTree.SubElement(suite, "testcase", classname=f"undertow.{finding.code}", name=_text(name))
        if finding in failing:
            failure = ElementTree.SubElement(case, "failure", type=finding.severity, message=_text(finding.summary))
            failure.text = _text(_details(finding))
        else:
            ElementTree.SubElement(case, "system-out").text = _text(f"{finding.severity}: {finding.summary}")
    ElementTree.indent(suite)
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True)


def _details(finding: Finding) -> str:
    lines = [f"since step {finding.first_step}, detected at step {finding.detected_step}"]
    lines += [f"{one.quantity} {one.layer or ''}: {one.how}" for one in finding.evidence]
    if finding.remedies:
        lines += [finding.remedies[0].what, finding.remedies[0].how]
    return "\n".join(lines)


_NOT_XML = re.compile("[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def _text(text: str) -> str:
    """XML has no word for most control characters, not even an escaped one."""
    return _NOT_XML.sub("\ufffd", text)

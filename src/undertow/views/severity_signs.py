"""Signs for severity and health: neither is ever told by colour alone."""

from undertow.schema import Health, Severity

GLYPHS = {
    Severity.INFO: "·",
    Severity.MILD: "○",
    Severity.MODERATE: "▲",
    Severity.SEVERE: "■",
    Severity.CRITICAL: "✖",
}
HEALTH_GLYPHS = {Health.HEALTHY: "✔", Health.MINOR: "○", Health.PROBLEMS: "■", Health.CRITICAL: "✖", None: "?"}

"""A command line as it may be written down: without passwords, tokens and keys."""

import math
import re
from collections import Counter
from collections.abc import Sequence

REDACTED = "[redacted]"

# The last word of a name, or its last two, that say its value is a secret: `--hf-token`, but not `--tokenizer`.
_SECRET = {
    "token", "secret", "password", "passwd", "pwd", "passphrase", "credential", "credentials", "auth", "authorization",
    "bearer", "cookie", "apikey", "dsn", "webhook", "sig", "signature", "sas",
}  # fmt: skip
_KEYS = {"api", "access", "secret", "private", "signing", "encryption", "account", "auth", "license", "service"}
_NAMED = re.compile(r"(?P<name>-{0,2}[A-Za-z][\w.-]*)(?P<sign>[=:])(?P<value>.+)", re.DOTALL)
# The same somewhere within an argument: in the query of an address, or in JSON.
_INNER = re.compile(r"""(?P<name>[A-Za-z][\w.-]*)(?P<sign>["']?\s*[=:]\s*["']?)(?P<value>[^\s&;,"'}]+)""")
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")
_USER = re.compile(r"(?<=://)[^/@\s]+(?=@)")  # `user:password` in an address
_RUN = re.compile(r"[A-Za-z0-9+]{20,}")
_LEAST_BITS = 3.4  # of a character; words of 20 letters and more have less or hold no digits


def redacted(command: Sequence[str]) -> list[str]:
    """Values of names that speak of secrets, targets of sinks, and what looks drawn at random, are left out."""
    out: list[str] = []
    name = ""  # of an option whose value is the next argument
    for argument in command:
        out.append(_value(name, argument) if name and not argument.startswith("--") else _argument(argument))
        name = argument if argument.startswith("-") and "=" not in argument else ""
    return out


def _argument(argument: str) -> str:
    named = _NAMED.fullmatch(argument)
    if named is None or named["value"].startswith("//"):
        return _without_random(argument)
    return named["name"] + named["sign"] + _value(named["name"], named["value"])


def _value(name: str, value: str) -> str:
    if _words(name)[-1:] in (["sink"], ["sinks"]):
        return re.sub(r"(?<=:)[^,\s]+", REDACTED, value)
    return REDACTED if _is_secret(name) else _argument(value)


def _words(name: str) -> list[str]:
    return [word.lower() for word in _WORD.findall(name)]


def _is_secret(name: str) -> bool:
    words = _words(name)
    return bool(words) and (words[-1] in _SECRET or (len(words) > 1 and words[-1] == "key" and words[-2] in _KEYS))


def _without_random(text: str) -> str:
    text = _INNER.sub(_inner, _USER.sub(REDACTED, text))
    return _RUN.sub(lambda run: REDACTED if _looks_random(run[0]) else run[0], text)


def _inner(found: re.Match[str]) -> str:
    value = REDACTED if _is_secret(found["name"]) else _INNER.sub(_inner, found["value"])
    return found["name"] + found["sign"] + value


def _looks_random(text: str) -> bool:
    if text.isdigit() or not any(map(str.isdigit, text)):
        return False
    counts = Counter(text).values()
    return -sum(n / len(text) * math.log2(n / len(text)) for n in counts) >= _LEAST_BITS

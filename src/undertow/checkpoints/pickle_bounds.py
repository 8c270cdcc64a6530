"""How much a pickle would make of itself, found out without making any of it.

A few bytes of a pickle can stand for gigabytes: a length, a place in the memo, a tuple of tuples of tuples. So its
instructions are walked through once, with nothing kept of an object but its weight, before anybody carries them out.
"""

import pickletools
import struct

# Of a pickle, in bytes. Torch keeps tensors beside it; a tensor takes about 200 bytes of it, optimizers four more each.
LARGEST_PICKLE = 1 << 25
# Carrying one out takes Python about a microsecond and 50 bytes; a tensor takes about forty.
MOST_INSTRUCTIONS = 5_000_000
# Calls are what makes tensors and records, of up to a kilobyte each.
MOST_CALLS = 300_000
# What equal tuples within tuples come to when somebody looks into all of them, as a dictionary does for a key.
HEAVIEST = 1_000_000

_CALLS = {"REDUCE", "NEWOBJ", "NEWOBJ_EX", "OBJ", "INST", "BUILD"}
# What holds its parts for good. Lists and dictionaries can be no keys.
_HOLDS = {"TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "FROZENSET", "REDUCE", "NEWOBJ", "NEWOBJ_EX", "OBJ"}
_LINES = {"INST": 2, "GLOBAL": 2}  # how many lines follow an instruction in text


class PickleBombError(ValueError):
    """It would cost more than it may, or cannot be walked through; the message says why in words."""


class _Instruction:
    """Where its argument ends, and what it takes from the stack and puts there."""

    def __init__(self, known: pickletools.OpcodeInfo) -> None:
        self.name = known.name
        size = 0 if known.arg is None else known.arg.n
        self.fixed = max(0, size)
        self.lines = _LINES.get(self.name, 1) if size == pickletools.UP_TO_NEWLINE else 0
        counted = {
            pickletools.TAKEN_FROM_ARGUMENT1: "<B",
            pickletools.TAKEN_FROM_ARGUMENT4: "<i",
            pickletools.TAKEN_FROM_ARGUMENT4U: "<I",
            pickletools.TAKEN_FROM_ARGUMENT8U: "<Q",
        }
        self.counted = struct.Struct(counted[size]) if size in counted else None
        before = known.stack_before
        self.to_mark = pickletools.markobject in before
        self.takes = before.index(pickletools.markobject) if self.to_mark else len(before)
        self.puts = len(known.stack_after)
        self.holds = self.name in _HOLDS
        self.calls = self.name in _CALLS
        self.role = ""
        if self.name in ("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"):
            self.role = "put"
        elif self.name in ("GET", "BINGET", "LONG_BINGET"):
            self.role = "get"
        elif self.name in ("MARK", "STOP", "DUP"):
            self.role = self.name.lower()


_INSTRUCTIONS = {ord(known.code): _Instruction(known) for known in pickletools.opcodes}


def check_pickle(data: bytes, start: int = 0) -> int:
    """Where the pickle that begins at `start` ends. Raises `PickleBombError`."""
    try:
        return _walk(data, start)
    except (IndexError, KeyError, ValueError, struct.error) as problem:
        if isinstance(problem, PickleBombError):
            raise
        raise PickleBombError("its instructions are damaged or end too early") from None


def _walk(data: bytes, at: int) -> int:
    stack: list[int] = []  # what each object weighs
    marks: list[int] = []  # how high the stack was
    memo: dict[int, int] = {}
    calls = 0
    for _ in range(MOST_INSTRUCTIONS):
        one = _INSTRUCTIONS[data[at]]
        begin = at + 1
        at = _end_of(one, data, begin)
        if one.role == "get":
            stack.append(memo[_place(one, data[begin:at])])
            continue
        if one.role == "put":
            place = len(memo) if one.name == "MEMOIZE" else _place(one, data[begin:at])
            if place > len(data):
                raise PickleBombError(f"it claims a place {place:,} for an object, in {len(data):,} bytes")
            memo[place] = stack[-1]
            continue
        if one.role == "mark":
            marks.append(len(stack))
            continue
        if one.role == "stop":
            return at
        if one.role == "dup":
            stack.append(stack[-1])
            continue
        low = (marks.pop() if one.to_mark else len(stack)) - one.takes
        if low < 0:
            raise IndexError
        weight = 1 + sum(stack[low:]) if one.holds else 1
        if weight > HEAVIEST:
            raise PickleBombError(f"it nests more than {HEAVIEST:,} objects within each other")
        del stack[low:]
        stack.extend([weight] * one.puts)
        calls += one.calls
        if calls > MOST_CALLS:
            raise PickleBombError(f"it makes more than {MOST_CALLS:,} tensors or records")
    raise PickleBombError(f"it has more than {MOST_INSTRUCTIONS:,} instructions")


def _end_of(one: _Instruction, data: bytes, at: int) -> int:
    for _ in range(one.lines):
        at = data.index(b"\n", at) + 1
    if one.counted is not None:
        (size,) = one.counted.unpack_from(data, at)
        at += one.counted.size + size
        if size < 0:
            raise IndexError
    at += one.fixed
    if at > len(data):
        raise PickleBombError("it claims more bytes than it has")
    return at


def _place(one: _Instruction, argument: bytes) -> int:
    """In the memo: a byte, four bytes, or a line of digits."""
    return int(argument) if one.lines else int.from_bytes(argument, "little")

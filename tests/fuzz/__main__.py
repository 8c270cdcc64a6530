"""The readers on ever new spoiled files, with a limit on memory: `python -m tests.fuzz MINUTES`."""

import os
import random
import resource
import subprocess
import sys
import time

ADDRESS_SPACE = 8 << 30  # bytes; torch alone takes half of it without using it


def main() -> int:
    until = time.monotonic() + 60 * float(sys.argv[1] if len(sys.argv) > 1 else 10)
    examples = 50
    while time.monotonic() < until:
        seed = random.SystemRandom().randrange(1 << 32)
        print(f"{examples} examples for each reader, seed {seed}", flush=True)
        command = [sys.executable, "-m", "pytest", "tests/fuzz", "-x", f"--hypothesis-seed={seed}"]
        process = subprocess.Popen(command, env={**os.environ, "FUZZ_EXAMPLES": str(examples)})
        resource.prlimit(process.pid, resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
        if process.wait():
            return 1
        examples = min(2 * examples, 1000)
    return 0


if __name__ == "__main__":
    sys.exit(main())

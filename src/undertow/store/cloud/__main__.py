"""`python -m undertow.store.cloud FOLDER ADDRESS`: send what an upload has left behind."""

import sys
from pathlib import Path

from undertow.errors import UndertowError
from undertow.store.cloud.upload import send_run


def main(arguments: list[str]) -> int:
    if len(arguments) != 2:
        print("usage: python -m undertow.store.cloud FOLDER ADDRESS", file=sys.stderr)
        return 2
    folder, address = arguments
    try:
        sent = send_run(Path(folder), address)
    except UndertowError as problem:
        print(f"undertow: error {problem.code}: {problem}", file=sys.stderr)
        return problem.exit_code
    files = "1 file" if sent.files == 1 else f"{sent.files} files"
    print(f"undertow: {files} ({sent.size:,} bytes) sent to {address}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

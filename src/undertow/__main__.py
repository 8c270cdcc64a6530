"""`python -m undertow` is the same program as `undertow`."""

from __future__ import annotations

import sys

from undertow.cli import main

if __name__ == "__main__":
    sys.exit(main())

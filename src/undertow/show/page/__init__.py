"""What a browser is given, below the media that give it: the scripts and styles of all pages, and a packed run.

The dashboard serves the scripts, a report and a notebook join them into one page.
"""

from pathlib import Path

STATIC = Path(__file__).parent / "static"

"""How the dashboard feels in a real browser: frames while moving, time to the first picture, bytes, memory.

    python -m benchmarks.ui [--layers 1000] [--steps 10000] [--long 100000] [--runs 50] [--folder DIR]

Bars: the median frame while moving a heatmap of 1,000 × 10,000 cells takes at most 25 ms in headless Chromium without a
GPU; the heatmap of a run of 100,000 steps is on the screen within 1 s; a dashboard with 50 runs open takes at most
300 MB. Exits with 1 when one is missed, and with 2 when there is no Chromium or no playwright.
"""

from __future__ import annotations

import argparse
import itertools
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from urllib.request import HTTPCookieProcessor, build_opener

import numpy as np

from benchmarks.ui.served import CHROMIUM, DRAWN, FLAGS, Served, write_run

FRAME_BAR, FIRST_BAR, MEMORY_BAR = 25.0, 1.0, 300.0  # milliseconds, seconds, megabytes


def seconds_to_picture(page: Any, address: str, run: str) -> float:
    began = time.perf_counter()
    page.goto(f"{address}#/run?run={run}")
    while not page.evaluate(DRAWN):  # the page itself may not evaluate text
        page.wait_for_timeout(10)
    return time.perf_counter() - began


def frame_milliseconds(page: Any) -> list[float]:
    """Time between frames while a hand drags the heatmap to and fro."""
    page.evaluate("""() => {
      window.times = [];
      const note = (time) => { window.times.push(time); requestAnimationFrame(note); };
      requestAnimationFrame(note);
    }""")
    page.mouse.move(900, 600)
    for _ in range(5):
        page.mouse.wheel(0, -240)  # so that there is somewhere to go
    page.wait_for_timeout(1500)
    page.evaluate("window.times.length = 0")
    page.mouse.down()
    for turn in range(6):
        page.mouse.move(500 if turn % 2 == 0 else 1200, 620, steps=40)
    page.mouse.up()
    times = page.evaluate("window.times")
    return [after - before for before, after in itertools.pairwise(times)]


def opened_runs(root: Path, served: Served, count: int) -> None:
    for number in range(count):
        write_run(root / f"small-{number}", 50, 200)
    opener = build_opener(HTTPCookieProcessor())
    base = served.address.partition("?")[0]
    opener.open(served.address).read()
    for number in range(count):
        for question in ("run", "diagnosis"):
            opener.open(f"{base}api/{question}?run=small-{number}").read()
        opener.open(f"{base}api/tile?run=small-{number}&quantity=gradient_norm&level=0&index=0").read()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--long", type=int, default=100_000)
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--folder", type=Path, default=None)
    options = parser.parse_args()
    chromium = next(filter(None, map(shutil.which, CHROMIUM)), None)
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        chromium = None
    if chromium is None:
        print("No Chromium or no playwright here: nothing was measured.", file=sys.stderr)
        return 2
    root = Path(tempfile.mkdtemp(prefix="undertow-ui-", dir=options.folder))
    try:
        write_run(root / "wide", options.layers, options.steps)
        write_run(root / "long", 100, options.long)
        served = Served(root)
        try:
            with sync_playwright() as driver:
                browser = driver.chromium.launch(executable_path=chromium, args=FLAGS)
                page = browser.new_page(viewport={"width": 1440, "height": 900})
                received: list[int] = []
                page.on("response", lambda answer: received.append(int(answer.headers.get("content-length", 0))))
                page.goto(served.address)
                page.wait_for_selector("table.runs a")
                first = seconds_to_picture(page, served.address, "long")
                received.clear()
                wide = seconds_to_picture(page, served.address, "wide")
                page.wait_for_load_state("networkidle")
                size = sum(received) / 1e6
                frames = frame_milliseconds(page)
                browser.close()
            opened_runs(root, served, options.runs)
            memory = served.megabytes()
        finally:
            served.stop()
    finally:
        shutil.rmtree(root)
    middle = statistics.median(frames)
    print(f"moving {options.layers:,} × {options.steps:,} cells: median frame {middle:.1f} ms, "
          f"95 % within {np.quantile(frames, 0.95):.1f} ms, {len(frames)} frames (bar {FRAME_BAR:.0f} ms)")  # fmt: skip
    print(f"first picture of {options.long:,} steps × 100 layers: {first:.2f} s (bar {FIRST_BAR:.0f} s)")
    print(f"first picture of {options.steps:,} steps × {options.layers:,} layers: {wide:.2f} s, {size:.1f} MB received")
    print(f"memory of the dashboard after {options.runs} runs: {memory:.0f} MB (bar {MEMORY_BAR:.0f} MB)")
    return int(middle > FRAME_BAR or first > FIRST_BAR or memory > MEMORY_BAR)


if __name__ == "__main__":
    sys.exit(main())

"""The dashboard beside trainscope's on an equal run: seconds to the first chart, bytes sent, seconds to zoom.

    python -m benchmarks.ui.beside --trainscope PYTHON [--layers 100] [--steps 3000] [--rounds 3]

PYTHON is an interpreter that has trainscope (benchmarks/overhead/requirements.txt). Both runs hold the same loss and
the same gradient norms of the same layers at every step; trainscope's is written by its own writer. Each round opens a
browser that has nothing cached. A chart counts as there when it shows more than a frame: here the heatmap, there the
first line of a plot. Zoomed: the first picture after a drag across a curve that differs from the one before.
"""

from __future__ import annotations

import argparse
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.ui.served import CHROMIUM, DRAWN, FLAGS, Served, write_run

WRITE = """
import sys, numpy as np
from pathlib import Path
from trainscope.core.config import TrainScopeConfig
from trainscope.io.writer import DiskWriter
folder, layers, steps = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
# Its writer rewrites a file every 1,000 steps and then keeps only the last five before: equal runs need it not to.
config = TrainScopeConfig(run_dir=str(folder.parent), run_name=folder.name, compaction_every_n_steps=steps + 1)
writer = DiskWriter(folder, config, "equal", {})
names = [f"blocks.{i // 10}.part{i % 10}.weight" for i in range(layers)]
slope, noise = np.linspace(-5, 0, layers), 0.3 * np.random.default_rng(0).normal(size=(64, layers))
for step in range(steps):
    norms = 10 ** (slope - step / steps + noise[step % 64])
    writer.append_global({"step": step, "loss": 1 / (1 + step), "grad_norm_before_clip": float(np.linalg.norm(norms))})
    for name, norm in zip(names, norms):
        writer.append_layer(name, {"step": step, "grad_l2_norm": float(norm)})
writer.close()
from trainscope.io.writer import read_arrow_rows_sync
kept = len(read_arrow_rows_sync(next(folder.rglob("*global*.arrow"))))
if kept != steps:
    sys.exit(f"trainscope kept {kept} of {steps} steps: the runs are not equal")
"""
PLOTTED = "() => !!document.querySelector('.js-plotly-plot .scatterlayer path.js-line, .js-plotly-plot .gl-canvas')"
PLOT = ".js-plotly-plot"
PICTURE = """(selector) => {
  const place = document.querySelector(selector);
  return place instanceof HTMLCanvasElement ? place.toDataURL() : place?.outerHTML ?? "";
}"""


def wait_until(page: Any, holds: Callable[[], bool], limit: float = 60.0) -> float:
    began = time.perf_counter()
    while not holds():
        if time.perf_counter() - began > limit:
            raise TimeoutError("nothing was drawn")
        page.wait_for_timeout(10)
    return time.perf_counter() - began


def looked_at(browser: Any, address: str, drawn: str, chart: str, handle: str) -> tuple[float, float, float]:
    """Seconds to the first chart, megabytes received by the time the page rests, seconds to zoom."""
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    page = context.new_page()
    received: list[float] = []
    network = context.new_cdp_session(page)
    network.send("Network.enable")
    network.on("Network.loadingFinished", lambda event: received.append(event["encodedDataLength"]))
    began = time.perf_counter()
    page.goto(address)
    if chart == PLOT:  # no address leads to its charts
        page.get_by_text("Timeline").first.click()
    wait_until(page, lambda: bool(page.evaluate(drawn)))
    first = time.perf_counter() - began
    page.wait_for_timeout(2000)
    box = page.locator(handle).first.bounding_box()
    before = page.evaluate(PICTURE, chart)
    page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 0.5 * box["height"])
    page.mouse.down()
    page.mouse.move(box["x"] + 0.7 * box["width"], box["y"] + 0.5 * box["height"], steps=4)
    released = time.perf_counter()
    page.mouse.up()
    wait_until(page, lambda: page.evaluate(PICTURE, chart) != before)
    zoomed = time.perf_counter() - released
    context.close()
    return first, sum(received) / 1e6, zoomed


def rival(python: str, run: Path) -> tuple[subprocess.Popen[str], str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [python, "-m", "trainscope", "ui", "--run", str(run), "--port", str(port), "--log-level", "error"]
    process = subprocess.Popen(command, text=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    for _ in range(600):
        with socket.socket() as knock:
            if knock.connect_ex(("127.0.0.1", port)) == 0:
                return process, f"http://127.0.0.1:{port}/"
        time.sleep(0.1)
    process.terminate()
    raise RuntimeError("trainscope's dashboard did not start")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trainscope", required=True, metavar="PYTHON")
    parser.add_argument("--layers", type=int, default=100)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    from playwright.sync_api import sync_playwright

    root = Path(tempfile.mkdtemp(prefix="undertow-ui-beside-"))
    size = [str(options.layers), str(options.steps)]
    try:
        write_run(root / "ours" / "run", options.layers, options.steps)
        subprocess.run([options.trainscope, "-c", WRITE, str(root / "theirs"), *size], check=True)
        served = Served(root / "ours")
        other, address = rival(options.trainscope, root / "theirs")
        try:
            print(f"{options.layers:,} layers × {options.steps:,} steps, median of {options.rounds} rounds")
            with sync_playwright() as driver:
                chromium = next(filter(None, map(shutil.which, CHROMIUM)), None)
                browser = driver.chromium.launch(executable_path=chromium, args=FLAGS)
                for name, place, drawn, handle in (
                    ("undertow", f"{served.address}#/run?run=run", DRAWN, ".chart canvas"),
                    ("trainscope", address, PLOTTED, ".js-plotly-plot .nsewdrag"),
                ):
                    chart = ".heatmap" if name == "undertow" else PLOT
                    rounds = [looked_at(browser, place, drawn, chart, handle) for _ in range(options.rounds)]
                    first, sent, zoomed = (statistics.median(column) for column in zip(*rounds))
                    print(f"{name:11} first chart {first:.2f} s, {sent:.2f} MB sent, zoomed within {zoomed:.2f} s")
                browser.close()
        finally:
            served.stop()
            other.kill()  # it waits for pages that follow it
            other.wait(30)
    finally:
        shutil.rmtree(root)
    return 0


if __name__ == "__main__":
    sys.exit(main())

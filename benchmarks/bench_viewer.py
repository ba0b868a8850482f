# mypy: allow-untyped-calls
"""Measure the time to open the page of 20,000 episodes, and its response times.

$ python benchmarks/bench_viewer.py

Chromium opens the page from a file, three times in new processes. ``ready`` is the time from the start of the
navigation until the first view is drawn and the page can be used. The other times are measured in the page: from the
key, click or filter until the next frame has been drawn, and the slowest frame of two seconds of scrolling.
"""

import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from for_viewer import Look, chromium, write_large_run
from report import QUICK, Column, Table, publish, require, run

from gym_trl.viewer.page import write_page

ROUNDS, EPISODES = (1, 4_000) if QUICK else (3, 20_000)
DRAWN = "await new Promise((done) => requestAnimationFrame(() => setTimeout(done)))"
SCROLL = """
const rows = document.querySelector('#rows');
const gaps = [];
let last = performance.now();
const end = last + 2000;
while (performance.now() < end) {
  rows.scrollTop += 1500;
  await new Promise((done) => requestAnimationFrame(done));
  gaps.push(performance.now() - last);
  last = performance.now();
}
done(gaps);
"""


def script(look: Look, body: str) -> Any:
    """Return the argument that asynchronous JavaScript gives to ``done``."""
    return look.driver.execute_async_script(
        f"const done = arguments[arguments.length - 1]; (async () => {{ {body} }})()"
    )


def timed(look: Look, action: str, until: str) -> float:
    """Return the milliseconds from an action in the page until its result is drawn."""
    waiting = f"while (!({until})) {{ await new Promise((next) => setTimeout(next)); }}"
    body = f"const began = performance.now(); {action}; {waiting} {DRAWN}; done(performance.now() - began);"
    return float(script(look, body))


def opened(url: str) -> dict[str, float]:
    """Return the times in which a new Chromium opens the page until it is usable."""
    with chromium() as look:
        look.driver.execute_cdp_cmd("Performance.enable", {})
        look.open(url)
        time.sleep(0.3)  # until the browser has noted the first paint
        paint = "performance.getEntriesByType('paint').find((one) => one.name === 'first-contentful-paint')?.startTime"
        told = look.driver.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
        spent = {metric["name"]: metric["value"] for metric in told}
        rows = "document.querySelectorAll('.grid-row').length > 10"
        figures = {
            "first contentful paint": look.js(paint),
            "ready": look.js("performance.getEntriesByName('ready')[0].startTime"),
            "scripting until ready": 1000 * spent["ScriptDuration"],
            "layout until ready": 1000 * (spent["LayoutDuration"] + spent["RecalcStyleDuration"]),
            "JavaScript heap, MB": spent["JSHeapUsedSize"] / 1e6,
            "table opens": timed(look, "location.hash = '#/episodes'", rows),
            "sort by return": timed(look, "document.querySelector('[data-column=return] button').click()", "true"),
        }
        told, all_ = (f"document.querySelector('#{name}').textContent" for name in ("shown", "total"))
        until = f"/^[0-9,]+ of [0-9,]+ episodes$/.test({told})"
        typed = "const box = document.querySelector('#filter'); box.value = '{}'; box.dispatchEvent(new Event('input'))"
        waiting, narrowed = f"{told} = ''; ", f"{until} && !{told}.startsWith({all_})"
        figures["filter by numbers"] = timed(look, waiting + typed.format("return>0.5 turns<4"), narrowed)
        figures["search all transcripts"] = timed(look, waiting + typed.format("abc"), narrowed)
        figures["search them, longest task"] = longest(look, waiting + typed.format("abd"), narrowed)
        timed(look, waiting + typed.format(""), until)
        gaps = script(look, SCROLL)
        figures["scrolling, slowest frame"] = max(gaps)
        figures["scrolling, median frame"] = statistics.median(gaps)
        middle = EPISODES // 2 + 1
        shown = f"document.querySelector('h1')?.textContent === 'Episode {middle}'"
        figures["an episode opens"] = timed(look, f"location.hash = '#/episode/{middle}'", shown)
        members = "document.querySelectorAll('[data-member]').length > 1"
        figures["a group opens"] = timed(look, f"location.hash = '#/group/{middle + 1}'", members)
        return figures


def longest(look: Look, action: str, until: str) -> float:
    """Return the longest blocking of the page during an action, in milliseconds; 0 for less than 50."""
    look.driver.execute_script(
        "window.tasks = []; new PerformanceObserver((list) => window.tasks.push(...list.getEntries()"
        ".map((one) => one.duration))).observe({type: 'longtask'})"
    )
    timed(look, action, until)
    slowest: float = look.js("Math.max(0, ...window.tasks)")
    return slowest


def main() -> None:
    require(programs=["chromium", "chromedriver"], packages=["selenium"])
    with tempfile.TemporaryDirectory() as folder:
        run = write_large_run(Path(folder, "large"), EPISODES)
        began = time.monotonic()
        counts = write_page(run, Path(folder, "large.html"))
        figures: dict[str, Any] = {
            "episodes": EPISODES,
            "records, MB": (run / "rollouts.jsonl").stat().st_size / 1e6,
            "page, MB": counts["bytes"] / 1e6,
            "chunks": counts["chunks"],
            "writing the page, s": time.monotonic() - began,
        }
        rounds = [opened(Path(folder, "large.html").as_uri()) for _ in range(ROUNDS)]
    medians = {name: statistics.median(one[name] for one in rounds) for name in rounds[0]}
    columns: list[Column] = [
        ("milliseconds, or as it says", lambda name: name),
        ("median", lambda name: medians[name]),
        ("least", lambda name: min(one[name] for one in rounds)),
        ("most", lambda name: max(one[name] for one in rounds)),
    ]
    table = Table.of("viewer", columns, medians)
    size = Table("viewer_page", list(figures), [list(figures.values())])
    publish("viewer", {"page": figures, "median": medians, "rounds": rounds}, tables=[table, size])


if __name__ == "__main__":
    run(main)

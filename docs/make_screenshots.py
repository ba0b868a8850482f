"""Generator of docs/view_*.png and docs/lift.png, pictures of a run in Chromium.

    gym-trl new lift
    gym-trl train lift.py --steps 200 --out runs/lift
    python docs/make_screenshots.py runs/lift

The run is that of docs/own_environment.md. It needs requirements-full.txt, chromium and chromedriver.
"""

import shutil
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from viewer.chromium import chromium

from gym_trl.viewer.page import write_page
from gym_trl.viewer.run import Run

DOCS = Path(__file__).parent
SIZE = {"width": 1440, "height": 900, "deviceScaleFactor": 1, "mobile": False}
PICTURES = [
    ("curves", "light"),
    ("episode", "light"),
    ("episode", "dark"),
    ("group", "dark"),
    ("table", "light"),
    ("tokens", "dark"),
]


def shoot(folder: Path) -> None:
    """Take the pictures, with few colours, which are smaller."""
    from PIL import Image

    page = folder / "view.html"
    write_page(folder, page)
    shown = chosen(folder)
    places = {
        "curves": "#/",
        "table": "#/episodes?q=train%20invalid",
        "episode": f"#/episode/{shown}",
        "tokens": f"#/episode/{shown}/tokens",
        "group": f"#/group/{shown}",
    }
    for name, scheme in PICTURES:
        with chromium("--hide-scrollbars") as look:
            media = [{"name": "prefers-color-scheme", "value": scheme}]
            look.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": media})
            look.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", SIZE)
            look.open(f"{page.resolve().as_uri()}{places[name]}")
            look.until("!document.querySelector('#shown')?.textContent.includes('searching')")
            time.sleep(0.5)
            picture = DOCS / f"view_{name}_{scheme}.png"
            look.driver.save_screenshot(str(picture))
        Image.open(picture).convert("RGB").quantize(256, dither=Image.Dither.NONE).save(picture, optimize=True)
    shutil.copyfile(folder / "curve.png", DOCS / "lift.png")


def chosen(folder: Path) -> int:
    """Return the episode that is shown: a long one that succeeded while others of its group did not."""
    run = Run(folder)
    number = len(list(run.episodes()))
    columns: dict[str, list[Any]] = run.index()["columns"]
    groups: dict[Any, list[int]] = {}
    for at in range(number // 2, number):
        if columns["split"][at] == "train":
            groups.setdefault((columns["step"][at], columns["group"][at]), []).append(at)
    mixed = [one for one in groups.values() if len({columns["success"][at] for at in one}) > 1]
    won = [at for one in mixed or groups.values() for at in one if columns["success"][at]]
    return max(won, key=lambda at: columns["turns"][at])


if __name__ == "__main__":
    shoot(Path(sys.argv[1]))

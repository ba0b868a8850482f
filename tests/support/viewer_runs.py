"""Example runs, and a real Chromium that displays them."""

import json
import math
import random
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gym_trl.episode import Episode, Segment, Span, Turn
from gym_trl.records import ROLLOUTS, Record, append, record_of
from gym_trl.types import Answer, Message, StopReason, Task

PATIENCE_S = 60.0
SWITCHES = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)


def played(
    seed: int = 0,
    *,
    turns: int = 2,
    reward: float = 1.0,
    thinking: str = "",
    answer: str = "ox",
    observation: str = "Say ox.",
    stop_reason: StopReason = StopReason.ENDED,
    error: str | None = None,
) -> Episode:
    """Return an episode with a token for each character, the environment's included."""
    segment, said, rng = Segment([*map(ord, observation)]), list[Turn](), random.Random(seed)
    for turn in range(turns):
        if turn:
            segment.add([*map(ord, observation)])
        spoken = f"<think>{thinking}</think>{answer}" if thinking else answer
        place = segment.add([*map(ord, spoken)], [math.log(rng.uniform(0.01, 1.0)) for _ in spoken])
        worth = reward if turn == turns - 1 else 0.0
        said.append(Turn(observation, Answer(thinking, answer), worth, spans=[Span(0, *place)]))
    messages = [Message("system", "Repeat words."), Message("user", observation)]
    for _ in said:
        messages += [Message("assistant", answer), Message("user", "Over.")]
    return Episode(
        Task("TrlEnv/Echo-v0", seed, {"instance": seed % 7}),
        segments=[segment],
        turns=said,
        messages=messages if said else [],
        opening=2 if said else 0,
        stop_reason=stop_reason,
        error=error,
        success=stop_reason is StopReason.ENDED if stop_reason.scored else None,
    )


def recorded(episode: Episode, **about: Any) -> Record:
    """Return a record with the text of each token, which is a character."""
    texts = [chr(one) for one in episode.row.completion_ids]
    return record_of(episode, tokens=True, token_texts=texts, **about)


def write_run(folder: Path, *, steps: int = 4) -> Path:
    """Write the folder of a run with two groups of four at each step, in which the first members win."""
    folder.mkdir(parents=True, exist_ok=True)
    for step in range(1, steps + 1):
        for place in range(8):
            group, attempt = divmod(place, 4)
            won, turns = attempt < step, 1 + attempt % 3
            episode = played(
                seed=1000 + group,
                turns=turns,
                reward=1.0 if won else -0.5,
                answer=f"ox {step}.{place}",
                thinking="Which one? " if attempt == 0 else "",
                stop_reason=StopReason.ENDED if won else StopReason.TURN_LIMIT,
            )
            about = {"policy": "tiny", "step": step, "split": "train", "group": group, "attempt": attempt}
            advantages = [0.0, *[0.42] * (turns - 2), -0.9][-turns:]
            append(folder / ROLLOUTS, [recorded(episode, **about, advantages=advantages)])
        share = step / steps
        numbers = {"env/return": share, "env/success": share, "env/turns": 2.0, "loss": 0.1 * step}
        stops = {"env/stop/ended": share, "env/stop/turn_limit": 1 - share}
        append(folder / "metrics.jsonl", [{"step": step, "seconds": 2.0 * step, "episodes": 8, **numbers, **stops}])
    scores = {
        name: {"episodes": 100, "success": {"mean": share, "low": share / 2, "high": (1 + share) / 2}}
        for name, share in {"before": 0.1, "after": 0.9, "random": 0.2}.items()
    }
    before = {"model": scores["before"], "random": scores["random"]}
    summary = {"before": before, "after": {"model": scores["after"]}, "steps": steps}
    (folder / "summary.json").write_text(json.dumps(summary))
    (folder / "config.json").write_text(json.dumps({"options": {"env": "TrlEnv/Echo-v0", "model": "tiny"}}))
    return folder


class Look:
    """Page in Chromium."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(self, url: str) -> None:
        """Open a page and wait until it shows its run."""
        self.driver.get("about:blank")
        self.driver.get(url)
        self.until("document.documentElement.dataset.episodes !== undefined")

    def go(self, hash_: str, until: str) -> None:
        """Follow one of the page's own addresses."""
        self.js(f"location.hash = {json.dumps(hash_)}")
        self.until(until)

    def js(self, expression: str) -> Any:
        """Return the value of an expression."""
        return self.driver.execute_script(f"return ({expression})")

    def until(self, expression: str) -> None:
        """Wait for an expression to be true."""
        deadline = time.monotonic() + PATIENCE_S
        while not self.js(expression):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{expression} did not come true on\n{self.js('document.body.innerText')[:2000]}")
            time.sleep(0.02)

    def texts(self, selector: str) -> list[str]:
        """Return the texts of the matching elements."""
        texts: list[str] = self.js(
            f"[...document.querySelectorAll({json.dumps(selector)})].filter((one) => !one.hidden)"
            ".map((one) => one.textContent)"
        )
        return texts

    def keys(self, *keys: str) -> None:
        """Press keys, as a person would."""
        from selenium.webdriver.common.action_chains import ActionChains

        for key in keys:
            ActionChains(self.driver, duration=0).send_keys(key).perform()

    def click(self, selector: str) -> None:
        """Click the matching element."""
        self.driver.find_element("css selector", selector).click()

    def complaints(self) -> list[str]:
        """Return the browser console's messages since the last call."""
        return [entry["message"] for entry in self.driver.get_log("browser")]


@contextmanager
def chromium(*switches: str) -> Iterator[Look]:
    """Provide a separate Chromium."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        for switch in (*SWITCHES, "--window-size=1400,900", f"--user-data-dir={profile}", *switches):
            options.add_argument(switch)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
        try:
            driver.set_page_load_timeout(PATIENCE_S)
            driver.set_script_timeout(PATIENCE_S)
            yield Look(driver)
        finally:
            driver.quit()

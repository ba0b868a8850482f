"""Example runs, and a real Chromium that displays them."""

import json
import math
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from gym_trl.engines.scripted import ScriptedEngine
from gym_trl.envspec import EnvSpec
from gym_trl.episode import Episode, Segment, Span, Turn
from gym_trl.executors.inline import InlinePool
from gym_trl.records import ROLLOUTS, Record, append, record_of
from gym_trl.rollout import Limits, rollout, run
from gym_trl.testing import ByteChat
from gym_trl.types import Answer, Message, StopReason, Task
from gym_trl.wrappers.base import attribute_of

PATIENCE_S = 60.0
SWITCHES = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
needs_chromium = pytest.mark.skipif(
    not (find_spec("selenium") and shutil.which("chromium") and shutil.which("chromedriver")),
    reason="there is no Chromium, or no selenium to drive it",
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


def write_run(
    folder: Path, *, steps: int = 4, groups: int = 2, size: int = 4, texts: bool = True, credit: bool = False
) -> Path:
    """Write the folder of a run in which the longer responses win."""
    folder.mkdir(parents=True, exist_ok=True)
    for step in range(1, steps + 1):
        for place in range(groups * size):
            group, attempt = divmod(place, size)
            won, turns = attempt < step, 1 + attempt % 3
            episode = played(
                seed=1000 + group,
                turns=turns,
                reward=1.0 if won else -0.5,
                answer=f"ox {step}.{place}",
                thinking="Which one? " if attempt == 0 else "",
                stop_reason=StopReason.ENDED if won else StopReason.TURN_LIMIT,
            )
            about: dict[str, Any] = {"step": step, "split": "train", "group": group, "attempt": attempt}
            if credit:
                about["advantages"] = [0.0, *[0.42 * step] * (turns - 2), -0.9][-turns:]
            write = recorded if texts else record_of
            append(folder / ROLLOUTS, [write(episode, policy="tiny", **about)])
        numbers = {"env/return": step / steps, "env/success": step / steps, "env/turns": 2.0, "loss": 0.1 * step}
        stops = {"env/stop/ended": step / steps, "env/stop/turn_limit": 1 - step / steps}
        append(folder / "metrics.jsonl", [{"step": step, "seconds": 2.0 * step, **numbers, **stops}])
    scores = {
        name: {"success": [share, share / 2, (1 + share) / 2], "return": [share] * 3, "episodes": 100}
        for name, share in {"before": 0.1, "after": 0.9, "random": 0.2}.items()
    }
    before = {"tiny": scores["before"], "random": scores["random"]}
    summary = {"before": before, "after": {"tiny": scores["after"]}, "steps": steps}
    (folder / "summary.json").write_text(json.dumps(summary))
    options = {"env": "TrlEnv/Echo-v0", "steps": steps, "groups": groups, "num_generations": size}
    (folder / "config.json").write_text(json.dumps({"version": 1, "options": options}))
    return folder


def play_games(
    env: Any, env_id: str, answer: Callable[[random.Random], str], *, seeds: Sequence[int], copies: int = 1
) -> list[list[Episode]]:
    """Play games in which every seat is sampled: ``copies`` of each task, one after the other."""
    chat, rng = ByteChat(), random.Random(0)
    tasks = [Task(env_id, seed) for seed in seeds for _ in range(copies)]
    spec = EnvSpec(env, seats="self", action_format="plain")
    [name] = spec.weights
    with spec.checked(name) as made:
        seats = attribute_of(made, "num_seats", 1)
    engine = ScriptedEngine(lambda request: chat.say(answer(rng)))
    with InlinePool(lambda _: spec.make(name)) as pool:
        play = rollout(tasks, pool=pool, engine=engine, chat=chat, limits=Limits(16), seats=seats, max_alive=1)
        return run(play)


def write_games(folder: Path, games: Sequence[Sequence[Episode]], *, copies: int = 1, **about: Any) -> Path:
    """Write the folder of a run that plays all seats, with so many ``copies`` of a game's task in a group."""
    for number, played in enumerate(games):
        group, game = divmod(number, copies)
        for seat, episode in enumerate(played):
            place: dict[str, Any] = {"group": group, "attempt": game * len(played) + seat}
            append(folder / ROLLOUTS, [recorded(episode, **{"split": "train", "step": 1, **place, **about})])
    return folder


def write_large_run(folder: Path, episodes: int, *, turns: int = 6, words: int = 24, different: int = 20_000) -> Path:
    """Write a run of many episodes with their tokens, composed of so many ``different`` turns."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = random.Random(0)
    vocabulary = [f" {rng.randrange(36**4):x}" for _ in range(4000)]

    def exchange() -> tuple[list[int], str, str, float, list[float]]:
        given, spoken = (rng.choices(range(4000), k=words) for _ in range(2))
        said = ["".join(vocabulary[id_] for id_ in some) for some in (given, spoken)]
        logprobs = [0.0] * words + [round(rng.random() * -3, 3) for _ in range(words)]
        return [*given, *spoken], said[0], said[1], rng.random() - 0.3, logprobs

    exchanges = [exchange() for _ in range(different)]
    mask = [*[0] * words, *[1] * words]
    with (folder / "rollouts.jsonl").open("w") as file, (folder / "metrics.jsonl").open("w") as metrics:
        for episode in range(episodes):
            played = rng.choices(exchanges, k=1 + episode % turns)
            ids = [id_ for one in played for id_ in one[0]]
            told = [
                {
                    "observation": observation,
                    "thinking": "",
                    "answer": answer,
                    "reward": reward,
                    "action_valid": True,
                    "start": words + 2 * words * turn,
                    "stop": 2 * words * (turn + 1),
                }
                for turn, (_, observation, answer, reward, _) in enumerate(played)
            ]
            record = {
                "version": 1,
                "task": {"env_id": "TrlEnv/Echo-v0", "seed": episode // 8, "options": {}},
                "step": episode // 64,
                "split": "train" if episode % 10 else "eval",
                "group": episode // 8 % 8,
                "stop_reason": rng.choice(["ended", "invalid", "turn_limit"]),
                "return": sum(one[3] for one in played),
                "success": episode % 3 == 0,
                "turns": told,
                "sampled_tokens": words * len(played),
                "completion_ids": ids,
                "mask": mask * len(played),
                "logprobs": [logprob for one in played for logprob in one[4]],
                "token_texts": [vocabulary[id_] for id_ in ids],
            }
            file.write(json.dumps(record) + "\n")
        for step in range(episodes // 64):
            metrics.write(json.dumps({"step": step, "env/return": rng.random(), "env/success": rng.random()}) + "\n")
    return folder


class Look:
    """Page in Chromium."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(self, url: str) -> None:
        """Open a page and wait until it shows its run."""
        self.driver.get("about:blank")
        self.driver.get(url)
        self.until("document.documentElement.dataset.ready === 'yes' && !document.querySelector('.opening')")

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

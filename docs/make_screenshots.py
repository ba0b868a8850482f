"""Generator of docs/view_*.png, screenshots of the pages of two real runs in Chromium.

    python docs/make_screenshots.py          # trains for some minutes if there is no run yet, then takes screenshots
    python docs/make_screenshots.py group    # only this one

It needs requirements-full.txt and Debian's chromium and chromium-driver; fonts-inter and fonts-jetbrains-mono make
the screenshots look like the page on most desktops. The first run, whose curves and table are shown, is ``gym-trl train
TrlEnv/Echo-v0``. The second run, whose episodes are shown, trains a tiny model with GRPO. The model was first trained
on games of an imperfect binary search that states its thinking.
"""

import random
import sys
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

import gymnasium as gym

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.viewer_runs import chromium

from gym_trl.chat import Chat
from gym_trl.testing import tiny_tokenizer
from gym_trl.types import Message
from gym_trl.viewer.page import write_page

DOCS = Path(__file__).parent
ECHO, RUN = Path("runs/echo"), Path("runs/guess_number")
GAME, HIGH, TURNS = "TrlEnv/GuessNumber-v0", 20, 5
SIZE = (1440, 900)
PICTURES = [
    ("curves", "light"),
    ("episode", "light"),
    ("episode", "dark"),
    ("group", "dark"),
    ("table", "light"),
    ("tokens", "dark"),
]
SHOWN = {"curves": ECHO, "table": ECHO}
"""Runs of the pictures; those of the others are of ``RUN``."""


def lesson(env: Any, rng: random.Random, chat: Chat, tokenizer: Any) -> tuple[list[int], list[int]]:
    """Return ids and mask of a game played by an imperfect binary search that states its thinking."""
    observation, _ = env.reset(seed=rng.randrange(2**31))
    ids = chat.open([Message("user", observation)])
    mask = [0] * len(ids)
    low, high, over = 1, HIGH, False
    while not over:
        guess = (low + high) // 2 if rng.random() < 0.6 else rng.randint(low, high)
        said = f"<think>{low} to {high}: try {guess}.</think>{guess}"
        spoken = [*tokenizer.encode(said, add_special_tokens=False), tokenizer.eos_token_id]
        observation, _, terminated, truncated, _ = env.step(str(guess))
        over = terminated or truncated
        low, high = (guess + 1, high) if observation == "Higher." else (low, guess - 1)
        told = [] if over else chat.reply(observation, closed=True)
        ids, mask = [*ids, *spoken, *told], [*mask, *[1] * len(spoken), *[0] * len(told)]
    return ids, mask


def teach(folder: Path, *, steps: int = 600, rows: int = 16) -> None:
    """Train a tiny model on lessons and save it."""
    import torch
    from transformers import Olmo2Config, Olmo2ForCausalLM

    tokenizer = tiny_tokenizer()
    # Not tiny_model: for a Qwen2 model Transformers 5 always loads Qwen2's own tokenizer, which drops spaces here.
    config = Olmo2Config(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=3,
        num_attention_heads=4,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        initializer_range=0.06,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    torch.manual_seed(0)
    model = Olmo2ForCausalLM(config)
    chat, rng, env = Chat(tokenizer), random.Random(0), gym.make(GAME, high=HIGH, turns=TURNS)
    games = [lesson(env, rng, chat, tokenizer) for _ in range(4_000)]
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 3e-3, total_steps=steps)
    for step in range(steps):
        lessons = rng.sample(games, rows)
        width = max(len(ids) for ids, _ in lessons)
        ids = torch.tensor([[*one, *[tokenizer.pad_token_id] * (width - len(one))] for one, _ in lessons])
        spoken = torch.tensor([[*mask, *[0] * (width - len(mask))] for _, mask in lessons])
        loss = model(input_ids=ids, labels=ids.masked_fill(spoken == 0, -100)).loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
        if step % 100 == 0 or step == steps - 1:
            print(f"lesson {step}: loss {loss.item():.3f}", flush=True)  # noqa: T201
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def train_run() -> None:
    """Train the taught model with GRPO."""
    from gym_trl.training import train

    taught = RUN.with_name("taught")
    teach(taught)
    train(
        GAME,
        model=str(taught),
        out=RUN,
        steps=100,
        groups=8,
        num_generations=8,
        learning_rate=2e-4,
        lora=0,
        eval_episodes=128,
        grpo={"max_completion_length": 300},
        env_kwargs={"high": HIGH, "turns": TURNS},
        max_tokens_per_turn=48,
        action_format="plain",
        instructions="",
    )


def shoot(wanted: Collection[str]) -> None:
    """Take the screenshots and compress them."""
    from PIL import Image

    pictures = [(name, scheme) for name, scheme in PICTURES if name in wanted]
    for folder in {SHOWN.get(name, RUN) for name in wanted}:
        write_page(folder, folder / "view.html")
    places = {**(choose(RUN) if {*wanted} - {*SHOWN} else {}), "curves": "#/", "table": "#/episodes?q=train%20failure"}
    for name, scheme in pictures:
        with chromium("--hide-scrollbars") as look:
            media = [{"name": "prefers-color-scheme", "value": scheme}]
            look.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": media})
            metrics = {"width": SIZE[0], "height": SIZE[1], "deviceScaleFactor": 1, "mobile": False}
            look.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
            page = SHOWN.get(name, RUN) / "view.html"
            look.open(f"{page.resolve().as_uri()}{places[name]}")
            look.until("!document.querySelector('#shown')?.textContent.includes('searching')")
            time.sleep(0.5)
            opened = "true" if name == "group" else "i < 2"
            look.js(f"document.querySelectorAll('.think').forEach((one, i) => {{ one.open = {opened} }})")
            picture = DOCS / f"view_{name}_{scheme}.png"
            look.driver.save_screenshot(str(picture))
        Image.open(picture).convert("RGB").quantize(256, dither=Image.Dither.NONE).save(picture, optimize=True)
        print(f"{picture}: {picture.stat().st_size / 1000:.0f} kB")  # noqa: T201


def choose(folder: Path) -> dict[str, str]:
    """Return the page's address of each screenshot: a group with different outcomes, and a member that won late."""
    from gym_trl.viewer.run import Run

    run = Run(folder)
    list(run.read())
    columns = run.columns
    groups: dict[tuple[Any, ...], list[int]] = {}
    for episode in range(len(run)):
        if columns["split"][episode] == "train":
            groups.setdefault((columns["step"][episode], columns["group"][episode]), []).append(episode)
    split = [members for members in groups.values() if 0 < sum(columns["success"][i] for i in members) < len(members)]
    late = split[len(split) // 2 :] or list(groups.values())
    members = max(late, key=lambda members: sum(columns["turns"][i] for i in members if columns["success"][i]))
    won = max((i for i in members if columns["success"][i]), key=lambda i: int(columns["turns"][i]), default=members[0])
    return {
        "episode": f"#/episode/{won}",
        "tokens": f"#/episode/{won}/tokens",
        "group": f"#/group/{won}",
    }


def main() -> int:
    """Train if there is no run yet, and take the screenshots."""
    from gym_trl.training import train

    wanted = {*sys.argv[1:]} or {name for name, _ in PICTURES}
    if wanted & {*SHOWN} and not ECHO.exists():
        train("TrlEnv/Echo-v0", steps=150, out=ECHO)
    if wanted - {*SHOWN} and not RUN.exists():
        train_run()
    shoot(wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Train a tiny model in a league: to the end, until it is killed, or resumed.

Arguments: a folder, a JSON object of options (``league``, ``grpo``, ``lora``, ``dies_at``), and what to do, as in
``train_and_die``: ``whole``, ``killed`` or ``resumed``.
"""

import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from support import tiny_trainer
from train_and_die import Die

from gym_trl.grpo.parts.league_games import LeagueGames
from gym_trl.grpo.processes import leave_process_group
from gym_trl.grpo.resume import ExactResume
from gym_trl.testing import tiny_model, tiny_tokenizer
from gym_trl.training.run_folder import last_checkpoint

RANK = int(os.environ.get("RANK", "0"))
KEPT = ("task", "seat", "opponent", "stop_reason", "episode_return", "completion_ids", "role", "task_key")


def main(folder: Path, options, *, dies=False, resumes=False):
    """Train, with a line for each rollout in ``played-RANK.jsonl``, and write the result."""
    folder.mkdir(parents=True, exist_ok=True)
    rollouts: list = []
    spec = tiny_trainer.plain_spec(
        "TrlEnv/TicTacToe-v0",
        seats=options["league"],
        num_tasks=16,
        num_eval_tasks=4,
        instructions="",
        max_tokens_per_turn=1,
    )
    grpo = {
        "learning_rate": 0.01,
        "per_device_train_batch_size": 16,
        "num_generations": 4,
        "max_completion_length": 128,
    }
    model = tiny_model(tiny_tokenizer())
    base = None
    if options.get("lora"):
        from peft import LoraConfig, get_peft_model

        model = get_peft_model(model, LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False))
        base = [weight.detach().clone() for weight in model.parameters() if not weight.requires_grad]
    trainer = tiny_trainer.make(
        folder / "checkpoints",
        spec,
        model=model,
        grpo={**grpo, **options.get("grpo", {})},
        callbacks=[Die(options["dies_at"])] if dies else [],
    )
    ExactResume().attach(trainer)
    games: LeagueGames = spec._league_games
    play = trainer.rollout_func
    with (folder / f"played-{RANK}.jsonl").open("a") as played:

        def watched(prompts, trainer):
            columns = play(prompts, trainer)
            rollouts.append({name: columns[name] for name in KEPT})
            line = {name: columns[name] for name in ("opponent", "task", "completion_ids")}
            played.write(json.dumps({"resumed": resumes, "step": trainer.state.global_step, **line}) + "\n")
            played.flush()
            return columns

        trainer.rollout_func = watched
        start = last_checkpoint(folder) if resumes else None
        trainer.train(resume_from_checkpoint=str(start.path) if start else None)
    state = spec.league.state if spec.league else None
    (folder / f"result-{RANK}.json").write_text(json.dumps(state))
    report: dict[str, Any] = {
        "rollouts": rollouts,
        "state": state,
        "logs": [log for log in trainer.state.log_history if "loss" in log],
    }
    loaded = [one.weights for one in games._loaded.values()]
    if loaded:
        ids = torch.arange(5)[None]
        with torch.no_grad():
            now, before = (one.eval()(ids).logits for one in (trainer.model, loaded[0]))
        report["snapshot_differs"] = float((now - before).abs().max())
        mine = {weight.data_ptr(): weight.numel() for weight in trainer.model.parameters()}
        shared = sum(weight.numel() for weight in loaded[0].parameters() if weight.data_ptr() in mine)
        report["shared"] = shared / sum(mine.values())
    if base is not None:
        kept = [weight for weight in trainer.model.parameters() if not weight.requires_grad]
        report["base_differs"] = max(float((a - b).abs().max()) for a, b in zip(base, kept, strict=True))
    (folder.parent / f"rank{RANK}.json").write_text(json.dumps(report))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    where, how = Path(sys.argv[1]), json.loads(sys.argv[2])
    for what in sys.argv[3:]:
        main(where / what.replace("resumed", "killed"), how, dies=what == "killed", resumes=what == "resumed")
    leave_process_group()

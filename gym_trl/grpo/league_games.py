"""Games of a league in a ``rollout_func``: the pairings, snapshots of the model, and the opponents that play."""

import random
import shutil
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gym_trl.chat.protocol import Chat
from gym_trl.engines.admission import context_of
from gym_trl.engines.protocol import Engine
from gym_trl.engines.routed import RoutedEngine
from gym_trl.errors import ConfigError
from gym_trl.executors.protocol import EnvFactory, TextEnvironment
from gym_trl.files import check_tree
from gym_trl.grpo import trl_versions
from gym_trl.grpo.attach import Place
from gym_trl.grpo.league import LeagueState
from gym_trl.grpo.planned_rows import Planned
from gym_trl.grpo.saved_state import SavedState
from gym_trl.grpo.trainer_engine import context_length, transformers_options
from gym_trl.policies.model import Model, end_ids
from gym_trl.policies.protocol import TextPolicy
from gym_trl.policies.weights import has_model, load_tokenizer, load_weights, loading, read_adapter
from gym_trl.records.json_lines import read_object
from gym_trl.rollout.config import RolloutConfig
from gym_trl.rollout.game import InThread, SeatPolicy
from gym_trl.rollout.limits import Limits
from gym_trl.seeding import derive_seed
from gym_trl.types import Policy, StepResult, Task

FOLDER = "league"
"""Folder of the snapshots in the trainer's ``output_dir``."""
_STATE = "gym_trl.league"


@dataclass
class LoadedOpponent:
    """Model of an opponent in memory."""

    weights: Any
    chat: Chat
    limits: Limits
    options: dict[str, Any]
    """Options of its engine."""


class LeagueGames:
    """League of one ``rollout_func``, restored from the trainer's state and told what all processes played.

    Args:
        league: The league.
        make: Function that makes an environment from its id, for the policies that environments provide.
        write: Function that marks an action as responses have to.
        seed: Seed of the draws.

    Raises:
        ConfigError: An environment does not have one of the opponents' policies.
    """

    def __init__(
        self,
        league: LeagueState,
        *,
        make: EnvFactory,
        env_ids: Collection[str] = (),
        write: Callable[[str], str] = str,
        seed: int = 0,
    ) -> None:
        self.league = league
        self._make, self._write, self._seed = make, write, seed
        self._saved = SavedState(league, _STATE)
        self._outcomes: list[tuple[str, int]] = []  # of this rollout, on this process
        self._loaded: dict[str, LoadedOpponent] = {}
        self._free: defaultdict[str, list[TextEnvironment]] = defaultdict(list)
        self._lent: list[tuple[str, TextEnvironment]] = []
        own = [
            policy for policy in league.policies.values() if isinstance(policy, TextPolicy) and policy.of_environment
        ]
        for env_id in env_ids if own else ():
            env = make(env_id)
            self._free[env_id].append(env)
            for policy in own:
                policy.check(env)

    def begin(self, trainer: Any) -> None:
        """Restore the state that a resumed training has saved, and let a snapshot join if it is time.

        Called before each rollout of a training, on every process.

        Raises:
            ConfigError: A snapshot is missing, or the trainer saves no whole model.
            OSError: The folder of the snapshots is a link, or has links in it.
        """
        self._saved.restore(trainer)
        step, folder = trainer.state.global_step, _folder(trainer)
        self._outcomes.clear()
        if self.league.is_due(step):
            self.league.join(step)
            if trainer.accelerator.is_main_process:
                check_tree(folder)
            _save_snapshot(trainer, folder / self.league.past[-1])
            if trainer.accelerator.is_main_process:
                _remove_others(folder, {*self.league.past, *_saved_names(folder.parent)})
            trainer.accelerator.wait_for_everyone()
        for name in self.league.past:
            if not has_model(folder / name):
                raise ConfigError(
                    f"the league's snapshot {name} is missing in {folder}: all processes must see the folder, and a "
                    f"training that is resumed with another output_dir needs a copy of its folder {FOLDER!r}"
                )

    def opponent(self, row: Planned, place: Place) -> str:
        """Return the opponent of a row's group; empty if the model plays all seats of its games."""
        rollout = self._rollout(place)
        return self.league.opponent(rollout, derive_seed(rollout, row.group, row.attempt))

    def opponents(self, rows: Iterable[Planned], place: Place, *, all_groups: bool = False) -> set[str]:
        """Return the opponents of rows, or of any group of the rollout."""
        if all_groups:
            return set(self.league.drawn(self._rollout(place)))
        return {self.opponent(row, place) for row in rows} - {""}

    def load(self, names: Iterable[str], trainer: Any, chat: Chat, config: RolloutConfig) -> None:
        """Load the models among these opponents, and drop all others; called before the trainer's engine is made."""
        wanted = sorted(name for name in names if not isinstance(self.league.policies.get(name), TextPolicy))
        self._loaded = {name: one for name, one in self._loaded.items() if name in wanted}
        for name in wanted:
            if name not in self._loaded:
                self._loaded[name] = self._load(name, trainer, chat, config)

    def model(self, name: str) -> LoadedOpponent | None:
        """Return an opponent that an engine samples; ``None`` for a text policy."""
        return self._loaded.get(name)

    def policy(self, name: str, task: Task, seed: int) -> SeatPolicy | InThread:
        """Return the text policy of an opponent for one seat of a game."""
        policy = self.league.policies[name]
        assert isinstance(policy, TextPolicy)
        slow = policy.concurrency > 1
        made: list[Policy] = [policy.make(self._env(task), seed)] if slow else []
        rng = random.Random(seed)

        def act(result: StepResult) -> str:
            listed = result.info.get("admissible_actions")
            if policy.of_environment and name == "random" and listed:  # the environment itself is elsewhere
                return self._write(rng.choice(list(listed)))
            if not made:
                made.append(policy.make(self._env(task), seed))
            action = made[0](result.observation)
            return action if policy.marks else self._write(action)

        return InThread(act) if slow else act

    @contextmanager
    def engine(self, own: Engine, trainer: Any) -> Iterator[Engine]:
        """Provide an engine that also samples the opponents' responses; their weights leave a GPU at its end."""
        if not self._loaded:
            yield own
            return
        import torch

        from gym_trl.engines.transformers import TransformersEngine, free_bytes

        device = trainer.accelerator.device
        share = free_bytes(device) // (2 * self.league.settings.at_once)

        def make(name: str) -> Engine:
            one = self._loaded[name]
            one.weights.to(device)
            return TransformersEngine(one.weights, **one.options, cache_bytes=share, constant_weights=True)

        try:
            with torch.no_grad():
                yield RoutedEngine(own, make)
        finally:
            for one in self._loaded.values():
                if not hasattr(one.weights, "peft_config"):  # whose base is the trainer's
                    one.weights.to("cpu")

    def note(self, opponent: str, outcome: int | None) -> None:
        """Note a game of this process: 1, 0 or -1 for a win, a draw or a loss; ``None`` for an unscored one."""
        if outcome is not None:
            self._outcomes.append((opponent, outcome))

    def end(self, trainer: Any) -> None:
        """Count the games of all processes and log; called after each rollout of a training, on every process."""
        from accelerate.utils import gather_object

        self.league.count(gather_object(list(self._outcomes)))
        self._saved.save(trainer)
        for env_id, env in self._lent:
            self._free[env_id].append(env)
        self._lent.clear()
        metrics = trl_versions.pending_metrics(trainer, "train")
        for name, value in self.league.metrics().items():
            metrics[name] = [value]

    def _rollout(self, place: Place) -> int:
        return derive_seed(self._seed, "league", place.step, place.call)

    def _env(self, task: Task) -> TextEnvironment:
        """Return an environment after the reset of a task, which nobody steps in this rollout."""
        free = self._free[task.env_id]
        env = free.pop() if free else self._make(task.env_id)
        self._lent.append((task.env_id, env))
        env.reset(seed=task.seed, options=dict(task.options) or None)
        return env

    def _load(self, name: str, trainer: Any, chat: Chat, config: RolloutConfig) -> LoadedOpponent:
        most = trainer.args.max_completion_length
        policy = self.league.policies.get(name)
        if policy is None:
            with _quiet(trainer.accelerator.device):
                weights = _snapshot(trainer, _folder(trainer) / name)
            limits = config.limits(most, context=context_length(trainer))
            return LoadedOpponent(weights, chat, limits, transformers_options(trainer, chat, config.sampling))
        assert isinstance(policy, Model)
        with _quiet(trainer.accelerator.device):
            weights = load_weights(policy.path)
        tokenizer = load_tokenizer(policy.path)
        own = config.chat or config.template_chat(tokenizer, {})
        options = transformers_options(trainer, own, {**config.sampling, **policy.sampling})
        pad = tokenizer.pad_token_id
        options |= {
            "pad_id": tokenizer.eos_token_id if pad is None else pad,
            "eos_ids": end_ids(weights.generation_config, tokenizer, own),
            "decode": tokenizer.decode,
        }
        return LoadedOpponent(weights, own, config.limits(most, context=context_of(weights.config)), options)


def _folder(trainer: Any) -> Path:
    return Path(trainer.args.output_dir) / FOLDER


def _save_snapshot(trainer: Any, path: Path) -> None:
    """Write the trained weights, on the main process; sharded weights are gathered by all."""
    partial = path.with_name(f".{path.name}")
    with _quiet(trainer.accelerator.device):
        trainer.save_model(str(partial), _internal_call=True)
    if not trainer.accelerator.is_main_process:
        return
    if not has_model(partial):
        raise ConfigError(
            "the trainer saves no whole model, which a league's snapshot is: with FSDP set "
            "fsdp_state_dict_type=FULL_STATE_DICT, with DeepSpeed ZeRO-3 stage3_gather_16bit_weights_on_model_save"
        )
    (partial / "training_args.bin").unlink(missing_ok=True)
    if path.exists():  # of a training that was interrupted later
        shutil.rmtree(path)
    partial.rename(path)


def _saved_names(output_dir: Path) -> set[str]:
    """Return the names of the snapshots that checkpoints need to be resumed from."""
    names: set[str] = set()
    for file in output_dir.glob("checkpoint-*/trainer_state.json"):
        try:
            saved = read_object(file)
        except (OSError, ConfigError):
            continue
        names |= set(saved.get("stateful_callbacks", {}).get(_STATE, {}).get("past", ()))
    return names


def _remove_others(folder: Path, names: Collection[str]) -> None:
    for path in folder.iterdir():
        if path.is_dir() and path.name.startswith(("step-", ".step-")) and path.name not in names:
            shutil.rmtree(path, ignore_errors=True)


def _snapshot(trainer: Any, folder: Path) -> Any:
    """Return the model of a snapshot; where adapters are trained, it shares the frozen weights with the trained one."""
    import torch

    model = trainer.accelerator.unwrap_model(trainer.model)
    if not hasattr(model, "peft_config"):
        if read_adapter(str(folder)) is not None:  # Transformers would apply it to its base
            raise ConfigError(f"the league's snapshot {folder} is an adapter, and whole models are trained")
        with loading(str(folder)):
            return type(model).from_pretrained(folder, dtype=torch.bfloat16 if trainer.args.bf16 else model.dtype)
    if trl_versions.shards_weights(trainer):
        return load_weights(str(folder))
    from peft import load_peft_weights, set_peft_model_state_dict

    # Parameters of their own, because the trained model's point to merged weights while it samples (merged_adapter).
    shared = {
        id(weight): torch.nn.Parameter(weight.data, requires_grad=False) if weight.is_floating_point() else weight
        for weight in model.parameters()
        if not weight.requires_grad
    }
    copied = deepcopy(model, shared)
    for module in copied.modules():  # what trainers put in its place calls layers of the trained model
        vars(module).pop("forward", None)
    with loading(str(folder)):
        set_peft_model_state_dict(copied, load_peft_weights(str(folder), device=str(trainer.accelerator.device)))
    return copied


@contextmanager
def _quiet(device: Any) -> Iterator[None]:
    """Load or save a model without a progress bar, and without a trace in the global generators."""
    import torch
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            yield
    finally:
        if shown:
            logging.enable_progress_bar()

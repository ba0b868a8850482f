"""``GRPOTrainer`` with advantages of turns, episodes in segments, games, and unscored episodes without influence."""

import math
from collections.abc import Sequence
from inspect import unwrap
from typing import TYPE_CHECKING, Any

import numpy as np

from gym_trl.engines.attention_backends import no_cudnn_attention
from gym_trl.episode import Episode
from gym_trl.errors import needs
from gym_trl.grpo.adapters import sync_weights
from gym_trl.grpo.credit import ESTIMATORS, Turns, advantages, dead_groups
from gym_trl.grpo.rewards import Outcome, env_reward, metrics
from gym_trl.grpo.rollout_func import RolloutFunc
from gym_trl.grpo.segments import FILLER, rows_of_segments, untrained, weigh_segments
from gym_trl.grpo.speed import logprobs_and_entropies
from gym_trl.grpo.trainer_settings import check_settings
from gym_trl.grpo.trl_versions import check_trl

with needs("train", "GymGRPOTrainer"):
    import torch
    from accelerate.utils import gather_object
    from trl import GRPOTrainer

if TYPE_CHECKING:
    from gym_trl.grpo.spec import GymSpec


class GymGRPOTrainer(GRPOTrainer):  # type: ignore[misc]  # TRL is untyped
    """``GRPOTrainer`` that takes datasets, rollouts and rewards from a ``GymSpec``.

    ::

        spec = GymSpec("TrlEnv/Wordle-v0", num_tasks=1_000)
        GymGRPOTrainer(model="Qwen/Qwen3-0.6B", args=GRPOConfig(...), spec=spec).train()

    ``train_dataset``, ``eval_dataset``, ``rollout_func``, ``reward_funcs`` and all other arguments of ``GRPOTrainer``
    may be given as well. With ``environment_factory=spec.environment_factory`` the model calls tools in TRL's own loop.

    In place of the stock class

    * each segment of an episode with a ``history`` is a row, and has the weight of its tokens in the whole episode;
    * each token has the advantage of its turn, with ``credit`` per turn and in games of several seats;
    * an unscored episode has no reward, whatever reward functions return for it;
    * metrics of episodes are exact over all processes and since they were last logged;
    * log-probabilities are computed at sampled positions only, where the model plainly allows it (``speed``).

    Args:
        arguments: The model, and further arguments of ``GRPOTrainer``.
        spec: Specification whose datasets, ``rollout_func`` and ``reward_funcs`` are used where none are given.
        named: Further arguments of ``GRPOTrainer``.

    Raises:
        ConfigError: A setting of the trainer does not go with the specification; the message says what to change.
        MissingDependencyError: TRL is not installed.
    """

    num_generations_eval: int
    _last_loaded_step: int

    def __init__(self, *arguments: Any, spec: "GymSpec | None" = None, **named: Any) -> None:
        if spec is not None:
            own = spec.arguments()
            if named.get("environment_factory") is not None:
                del own["rollout_func"]
            named = own | {name: value for name, value in named.items() if value is not None}
        check_trl()
        played = unwrap(named["rollout_func"]) if named.get("rollout_func") is not None else None
        self.gym_rollout_func = played if isinstance(played, RolloutFunc) else None
        """Function of a specification, below functions around it; ``None`` with an ``environment_factory``."""
        if (args := named.get("args")) is not None:
            check_settings(args, self.gym_rollout_func, named)
        super().__init__(*arguments, **named)
        if args is None:
            check_settings(self.args, self.gym_rollout_func, named)
        self._rows: list[tuple[int, int]] = []  # of the batch: an episode and one of its segments; -1 is a filler
        self._outcomes: dict[str, list[Outcome]] = {"train": [], "eval": []}  # since they were last logged
        self._share_of_dead_groups = 0.0
        batch = self.args.per_device_eval_batch_size * self.accelerator.num_processes
        if batch % self.num_generations_eval:  # the choice of TRL's defaults, which evaluations would fail with
            self.num_generations_eval = math.gcd(batch, self.num_generations_eval)
        if self.gym_rollout_func is not None:
            self.gym_rollout_func.check(self)

    def train(self, *arguments: Any, **named: Any) -> Any:
        """Train as TRL does, never on rows that are left of a training before."""
        self._step, self._buffered_inputs = 0, None
        return super().train(*arguments, **named)

    @property
    def _in_segments(self) -> bool:
        return self.gym_rollout_func is not None and self.gym_rollout_func.history is not None

    @property
    def _by_turn(self) -> bool:
        return self.gym_rollout_func is not None and self.gym_rollout_func.by_turn and self.model.training

    def _generate(self, prompts: list[Any]) -> tuple[Any, ...]:
        """Return a row for each segment; fillers make their number the same everywhere, and divisible by steps."""
        if self.use_vllm and self.state.global_step != self._last_loaded_step:
            sync_weights(self)  # as TRL does, and leaves weights below an adapter as they are to the last bit
            self._last_loaded_step = self.state.global_step
        prompt_ids, completion_ids, mask, completions, logprobs, columns, *images = super()._generate(prompts)
        if self.environments is not None:
            mask = [
                row if one.episode.scored else [0] * len(row) for row, one in zip(mask, self.environments, strict=True)
            ]
        self._rows = [(number, 0) for number in range(len(prompt_ids))]
        if self._in_segments:
            episodes: Sequence[Episode] = columns["episode"]
            self._rows = rows_of_segments(episodes, self.args.steps_per_generation if self.model.training else 1)
            filler = untrained(self.eos_token_ids[0])
            segments = [filler if row == FILLER else episodes[row[0]].segments[row[1]] for row in self._rows]
            prompt_ids, completion_ids = [one.prompt_ids for one in segments], [one.completion_ids for one in segments]
            mask, logprobs = [one.mask for one in segments], [one.logprobs for one in segments]
        return prompt_ids, completion_ids, mask, completions, logprobs, columns, *images

    def _calculate_rewards(self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any) -> Any:
        """Return the rewards of all processes, of which an unscored episode has none, and note their advantages."""
        if self.environments is not None:
            episodes: list[Episode] = [one.episode for one in self.environments]
            outcomes = gather_object([Outcome.of(one) for one in episodes])
        else:
            episodes, outcomes = [row["episode"] for row in inputs], inputs[0]["outcomes"]
        self._outcomes["train" if self.model.training else "eval"] += outcomes
        if self._in_segments:  # functions are called with episodes, not with segments
            completion_ids_list = [one.row.completion_ids for one in episodes]
        rewards = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        scored = torch.tensor(gather_object([one.scored for one in episodes]), device=rewards.device)
        rewards = rewards.masked_fill(~scored.unsqueeze(1), torch.nan)
        if self.model.training:
            self._set_advantages(episodes, rewards)
        return rewards

    def _set_advantages(self, episodes: Sequence[Episode], rewards: Any) -> None:
        """Give the turns of this process's episodes their advantages, and note the share of the groups without any.

        What functions pay besides the environment's return belongs to the last turn.
        """
        weights, first = self.reward_weights.tolist(), self.accelerator.process_index * len(episodes)
        share = sum(one for one, function in zip(weights, self.reward_funcs, strict=True) if function is env_reward)
        totals = (rewards * self.reward_weights.to(rewards.device)).nansum(dim=1).tolist()
        members = []
        for place, one in enumerate(episodes, start=first):
            if one.scored:
                paid = [share * turn.reward for turn in one.turns]
                paid[-1] += totals[place] - math.fsum(paid)
                members.append(Turns.of(one, place // self.num_generations, paid, weight=share))
        of_processes: list[list[Turns]] = gather_object([members])
        everyone = [member for some in of_processes for member in some]
        before = sum(map(len, of_processes[: self.accelerator.process_index]))
        estimator = ESTIMATORS["episode"] if self.gym_rollout_func is None else self.gym_rollout_func.estimator
        values = advantages(everyone, estimator, self.scale_rewards)
        self._share_of_dead_groups = len(dead_groups(everyone, values)) * self.num_generations / len(rewards)
        own = values[before : before + len(members)]
        for one, row in zip((one for one in episodes if one.scored), own, strict=True):
            for turn, value in zip(one.turns, row, strict=True):
                turn.advantage = value

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        """Return a batch with an advantage of each token, and the weight of an episode for its segments together."""
        split = "train" if self.model.training else "eval"
        if not self._metrics[split]:  # TRL has logged them
            self._outcomes[split].clear()
        out: dict[str, Any] = super()._generate_and_score_completions(inputs)
        self._metrics[split] |= {f"env/{name}": [one] for name, one in metrics(self._outcomes[split]).items()}
        if self.model.training:  # TRL compares a deviation of 32-bit numbers with 0
            self._metrics[split]["frac_reward_zero_std"][-1] = self._share_of_dead_groups
        if not (self._by_turn or self._in_segments):
            return out
        device = out["completion_ids"].device
        owners = torch.tensor([number for number, _ in self._rows], device=device)
        weights = weigh_segments(self, out, owners) if self._in_segments else torch.ones(len(owners), device=device)
        if self._by_turn:
            table = np.zeros(tuple(out["completion_ids"].shape), np.float32)
            row_of = {place: row for row, place in enumerate(self._rows)}
            for number, row in enumerate(inputs):
                for turn in row["episode"].turns if row["episode"].scored else ():
                    for span in turn.spans:
                        table[row_of[number, span.segment], span.start : span.stop] = turn.advantage
            out["advantages"] = torch.from_numpy(table).to(device) * weights.unsqueeze(1)
        else:
            out["advantages"] = out["advantages"][owners.clamp(min=0)] * weights
        return out

    def _get_per_token_logps_and_entropies(
        self, model: Any, input_ids: Any, attention_mask: Any, logits_to_keep: int, **named: Any
    ) -> tuple[Any, Any, Any]:
        """Return TRL's log-probabilities and entropies, with less work where that changes no loss and no gradient."""
        compute = super()._get_per_token_logps_and_entropies
        rows = model, input_ids, attention_mask
        with no_cudnn_attention():
            return logprobs_and_entropies(self, compute, *rows, length=logits_to_keep, **named)

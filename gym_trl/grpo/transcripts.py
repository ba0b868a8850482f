"""Callback that logs sample episodes as text to the trainer's loggers."""

from collections.abc import Sequence
from typing import Any

from gym_trl.errors import check_counts, needs
from gym_trl.grpo.parts.part import Rollout
from gym_trl.types import EpisodeResult

with needs("train", "a trainer's callback"):
    from transformers import TrainerCallback

_COLUMNS = ("step", "task", "return", "stop_reason", "transcript")


class LogTranscripts(TrainerCallback):  # type: ignore[misc]  # Transformers is untyped
    """Callback that logs some episodes as text to TensorBoard, Trackio or Weights & Biases, as in ``report_to``.

    ::

        transcripts = LogTranscripts(every=20)
        spec = GymSpec("TrlEnv/Wordle-v0", on_rollout=transcripts.on_rollout)
        trainer = GymGRPOTrainer(..., spec=spec, args=GRPOConfig(report_to="tensorboard"))
        transcripts.attach(trainer)
        trainer.train()

    Metrics need no callback: the trainer logs ``env/return``, ``env/success``, ``env/turns``, ``env/stop/...`` together
    with its own, as ``train/env/return`` and so on. The texts are ``transcripts/0``, ``transcripts/1``, ... in
    TensorBoard, and a table ``transcripts`` in the other loggers.

    Args:
        every: Number of steps from one sample to the next; the first step is sampled too.
        count: Number of episodes in a sample: the worst, the best, and others evenly ranked in between.

    Raises:
        ConfigError: ``every`` or ``count`` is below 1.
    """

    def __init__(self, *, every: int = 50, count: int = 2) -> None:
        check_counts(every=every, count=count)
        self._every = every
        self._count = count
        self._played: Sequence[EpisodeResult] = ()
        self._trainer: Any = None

    def attach(self, trainer: Any) -> None:
        """Add this callback to ``trainer`` and use its loggers."""
        self._trainer = trainer
        trainer.add_callback(self)

    def on_rollout(self, rollout: Rollout) -> None:
        """Keep the latest training episodes; pass this method as ``GymSpec(on_rollout=...)``."""
        if rollout.split == "train":
            self._played = rollout.episodes

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Log a sample if one is due."""
        if state.is_world_process_zero and self._played and (state.global_step - 1) % self._every == 0:
            self._send(args, state.global_step, _sample(self._played, self._count))

    def _send(self, args: Any, step: int, sample: Sequence[EpisodeResult]) -> None:
        for callback in self._trainer.callback_handler.callbacks:
            if (writer := getattr(callback, "tb_writer", None)) is not None:
                for place, episode in enumerate(sample):
                    # TensorBoard renders Markdown; indented by four spaces the text is shown literally.
                    text = transcript(episode).replace("\n", "\n    ")
                    writer.add_text(f"transcripts/{place}", f"    {text}", step)
        for name in ("wandb", "trackio"):
            if name in args.report_to:
                _send_table(name, step, sample)


def transcript(episode: EpisodeResult) -> str:
    """Return an episode as text: its messages, rewards, stop reason and return.

    >>> from gym_trl.types import Answer, Message, StopReason, Task, Turn
    >>> messages = (Message("user", "Say ox."), Message("assistant", "ox"), Message("user", "Right."))
    >>> turn = Turn("Say ox.", Answer("Hm.", "ox"), 1.0, True, 0, 2)
    >>> won = EpisodeResult(Task("TrlEnv/Echo-v0", 1), StopReason.SUCCESS, (turn,), messages)
    >>> print(transcript(won))
    TrlEnv/Echo-v0, seed 1: success, return 1
    [user] Say ox.
    [thinking] Hm.
    [assistant] ox
    [reward] 1
    [user] Right.
    """
    worth = "no return" if episode.episode_return is None else f"return {episode.episode_return:g}"
    lines = [f"{episode.task.env_id}, seed {episode.task.seed}: {episode.stop_reason}, {worth}"]
    turns = iter(episode.turns)
    for message in episode.messages:
        turn = next(turns, None) if message.role == "assistant" else None
        if turn and turn.answer.thinking:
            lines.append(f"[thinking] {turn.answer.thinking}")
        lines.append(f"[{message.role}] {message.content}")
        if turn:
            lines.append(f"[reward] {turn.reward:g}")
    return "\n".join([*lines, *([f"[error] {episode.error}"] if episode.error else [])])


def _sample(played: Sequence[EpisodeResult], count: int) -> list[EpisodeResult]:
    """Return ``count`` episodes from the worst to the best, evenly ranked."""
    ranked = sorted(played, key=lambda one: float("-inf") if one.episode_return is None else one.episode_return)
    last = min(count, len(ranked)) - 1
    return [ranked[round(place * (len(ranked) - 1) / last) if last else -1] for place in range(last + 1)]


def _send_table(name: str, step: int, sample: Sequence[EpisodeResult]) -> None:
    rows = [[step, one.task.to_json(), one.episode_return, one.stop_reason.value, transcript(one)] for one in sample]
    if name == "wandb":
        import wandb

        wandb.log({"transcripts": wandb.Table(columns=list(_COLUMNS), data=rows)})
        return
    import pandas
    import trackio

    trackio.log({"transcripts": trackio.Table(dataframe=pandas.DataFrame(rows, columns=list(_COLUMNS)))})

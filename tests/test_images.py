"""Laws of episodes with images: ids, placeholders, masks, features, and what a trainer computes of them."""

from base64 import b64decode, b64encode
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from support.image_models import PROCESSORS, BrightSide, Drawn, model_of, parity

from gym_trl import GymSpec, adopt
from gym_trl.chat.images import _decoded
from gym_trl.chat.template import TemplateChat
from gym_trl.engines.transformers import TransformersEngine
from gym_trl.envspec import EnvSpec
from gym_trl.errors import ChatTemplateError, ConfigError
from gym_trl.evaluation.evaluation import evaluate
from gym_trl.executors.inline import InlinePool
from gym_trl.executors.protocol import TextEnvironment
from gym_trl.images import PngImage
from gym_trl.option_args import PlayArgs
from gym_trl.policies.server import server as ask
from gym_trl.records.files import read_records
from gym_trl.records.schema import MAX_IMAGE_BYTES, as_record
from gym_trl.rollout.episode import Episode
from gym_trl.rollout.limits import Limits
from gym_trl.rollout.loop import run_episodes
from gym_trl.testing import ByteChat, ScriptedEngine, tiny_processor, tiny_tokenizer
from gym_trl.types import Answer, EpisodeResult, Message, Request, StopReason, Task, Turn
from gym_trl.viewer.episode import body
from gym_trl.wrappers import ImageObservation, ParseAction, as_text
from gym_trl.wrappers.image_observation import encode_image

every_processor = pytest.mark.parametrize("family", PROCESSORS)


def image(number: int, height: int = 16, width: int = 16) -> PngImage:
    return encode_image(np.random.default_rng(number).integers(256, size=(height, width, 3), dtype=np.uint8))


def whole(processor: Any, messages: list[Message]) -> list[int]:
    """Return the ids of one rendering of a whole conversation by the processor itself."""
    conversation = [
        {
            "role": message.role,
            "content": [
                *({"type": "image", "image": _decoded(image)} for image in message.images),
                {"type": "text", "text": message.content},
            ],
        }
        for message in messages
    ]
    made = processor.apply_chat_template([conversation], tokenize=True, add_generation_prompt=True, return_dict=True)
    return list(map(int, made["input_ids"][0]))


@every_processor
@settings(deadline=None, max_examples=10)
@given(st.lists(st.integers(0, 2), min_size=1, max_size=4))
def test_a_transcript_with_images_equals_one_rendering_of_the_conversation(family: str, shown: list[int]) -> None:
    processor = PROCESSORS[family]()
    chat = TemplateChat(processor)
    messages, ids = [Message("user", "Look.", tuple(image(place) for place in range(shown[0])))], []
    ids += chat.open(messages)
    for turn, count in enumerate(shown[1:], start=1):
        images = tuple(image(10 * turn + place) for place in range(count))
        ids += chat.say("left")
        ids += chat.reply(f"Turn {turn}.", closed=True, images=images)
        messages += [Message("assistant", "left"), Message("user", f"Turn {turn}.", images)]
        chat.follow(messages, turn)
    assert ids == whole(processor, messages)
    assert chat.images is not None
    every = [image for message in messages for image in message.images]
    assert ids.count(chat.images.feature_id) == sum(map(chat.images.features, every))


@every_processor
def test_text_writes_no_placeholder_of_an_image(family: str) -> None:
    processor = PROCESSORS[family]()
    chat = TemplateChat(processor)
    assert chat.images is not None
    marks = " ".join(processor.tokenizer.all_special_tokens)
    plain = chat.open([Message("user", marks)]) + chat.reply(marks, closed=True)
    assert not {*chat.images.mark_ids} & {*plain}
    one = image(0)
    ids = chat.open([Message("user", marks, (one,))]) + chat.reply(marks, closed=True, images=(one,))
    assert ids.count(chat.images.feature_id) == 2 * chat.images.features(one)


def test_a_template_that_changes_messages_beside_images_is_refused() -> None:
    processor = tiny_processor()
    once = "{% if message['content'] is not string and loop.index0 > 1 %}!{% endif %}{{ '<|end|>' }}"
    chat = TemplateChat(processor, chat_template=processor.chat_template.replace("{{ '<|end|>' }}", once))
    with pytest.raises(ChatTemplateError, match="differently where others have images"):
        chat.open([Message("user", "", (image(0),))])


def test_a_tokenizer_alone_has_no_place_for_images() -> None:
    chat = TemplateChat(tiny_tokenizer())
    assert not chat.takes_images
    with pytest.raises(ChatTemplateError, match="messages with images need the model's processor"):
        chat.open([Message("user", "", (image(0),))])


# ---------------------------------------------------------------------------------------------------------------------
# Rollouts
# ---------------------------------------------------------------------------------------------------------------------


def make(env_id: str) -> Any:
    env = as_text(ImageObservation(BrightSide(turns=3), text=False), act=parity)
    return ParseAction(env, format="plain", cut_actions="accept")


def play(engine: Any, chat: Any, episodes: int = 3) -> Any:
    limits = Limits(tokens_per_turn=1)
    with InlinePool(make) as pool:
        tasks = [Episode(Task("BrightSide", seed), chat=chat, limits=limits, seed=seed) for seed in range(episodes)]
        return run_episodes(tasks, pool=pool, engine=engine)


def engine_of(model: Any, chat: TemplateChat, **options: Any) -> TransformersEngine:
    assert chat.images is not None
    sampling = {"suppress_tokens": chat.images.mark_ids}
    return TransformersEngine(model, pad_id=0, eos_ids={1}, sampling=sampling, images=chat.images.all_inputs, **options)


@every_processor
def test_the_trace_has_the_ids_and_logprobs_of_the_engine(family: str) -> None:
    processor = PROCESSORS[family]()
    chat, model = TemplateChat(processor), model_of(family, processor)
    seen: list[Request] = []
    engine = engine_of(model, chat)
    submit = engine.submit

    def watch(request: Request) -> None:
        seen.append(request)
        submit(request)

    engine.submit = watch  # type: ignore[method-assign]
    for number, episode in enumerate(play(engine, chat)):
        requests = [request for request in seen if request.episode_id == str(number)]
        trace = episode.trace
        ids = trace.prompt_ids + trace.completion_ids
        assert [len(request.images) for request in requests] == [1, 2, 3]
        for request in requests:
            assert request.prompt_ids == ids[: len(request.prompt_ids)]
            assert trace.images[: len(request.images)] == request.images
        images = chat.images
        assert images is not None
        assert ids.count(images.feature_id) == sum(map(images.features, trace.images))
        masked = [id_ for id_, sampled in zip(trace.completion_ids, trace.mask, strict=True) if sampled]
        assert images.feature_id not in masked
        row = torch.tensor([ids])
        with torch.no_grad():
            scores = model(row, **images.all_inputs([trace.images], row)).logits[0, len(trace.prompt_ids) - 1 : -1]
        scores[:, images.mark_ids] = -torch.inf
        again = scores.log_softmax(-1).gather(1, torch.tensor(trace.completion_ids)[:, None])[:, 0].tolist()
        for ours, theirs, sampled in zip(trace.logprobs, again, trace.mask, strict=True):
            assert not sampled or abs(ours - theirs) < 2e-3


@every_processor
def test_scores_depend_on_the_image_and_gradients_reach_its_pixels(family: str) -> None:
    processor = PROCESSORS[family]()
    chat, model = TemplateChat(processor), model_of(family, processor)
    images = chat.images
    assert images is not None
    ids = torch.tensor([chat.open([Message("user", "?", (image(0),))])])
    seen = []
    for number in (0, 0, 1):
        inputs = images.all_inputs([[image(number)]], ids)
        inputs["pixel_values"].requires_grad_()
        scores = model(ids, **inputs).logits[0, -1]
        scores.square().sum().backward()
        assert inputs["pixel_values"].grad.abs().max() > 0
        seen.append(scores.detach())
    assert torch.equal(seen[0], seen[1])
    assert (seen[0] - seen[2]).abs().max() > 1e-4


@every_processor
def test_episodes_alone_equal_episodes_together(family: str) -> None:
    processor = PROCESSORS[family]()
    chat, model = TemplateChat(processor), model_of(family, processor)
    together = play(engine_of(model, chat), chat)
    alone = play(engine_of(model, chat, max_batch=1), chat)
    assert [one.trace.completion_ids for one in together] == [one.trace.completion_ids for one in alone]


def test_a_chat_or_an_engine_without_a_place_for_images_is_refused() -> None:
    with pytest.raises(ConfigError, match="the model reads text only"):
        play(ScriptedEngine(lambda request: [1]), ByteChat())
    with pytest.raises(ConfigError, match="ScriptedEngine takes no images"):
        play(ScriptedEngine(lambda request: [1]), TemplateChat(tiny_processor()))


# ---------------------------------------------------------------------------------------------------------------------
# Training
# ---------------------------------------------------------------------------------------------------------------------


def spec_of(**options: Any) -> GymSpec:
    return GymSpec(
        BrightSide,
        **{
            "env_kwargs": {"turns": 2},
            "images": "only",
            "act": parity,
            "action_format": "plain",
            "max_tokens_per_turn": 1,
            "cut_actions": "accept",
            "num_tasks": 16,
            "num_eval_tasks": 4,
            "executor": "inline",
            **options,
        },
    )


@pytest.mark.trl
@pytest.mark.parametrize("family", ["llava", *(pytest.param(it, marks=pytest.mark.full) for it in ("qwen", "idefics"))])
def test_a_trainer_computes_each_row_with_its_own_images(family: str, tmp_path: Any) -> None:
    from support import tiny_trainer

    processor = PROCESSORS[family]()
    model, spec, played = model_of(family, processor), spec_of(), []

    def rollout_func(prompts: Any, trainer: Any) -> Any:
        columns = spec.rollout_func(prompts, trainer)
        played.append(columns)
        return columns

    grpo = {
        "max_steps": 2,
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 2,
        "num_iterations": 2,  # so that the old log-probabilities are computed, too
        "per_device_eval_batch_size": 4,
        "learning_rate": 1e-2,
    }
    trainer = tiny_trainer.make(
        tmp_path, spec, grpo=grpo, model=model, processing_class=processor, rollout_func=rollout_func
    )
    adopt(trainer, spec)
    before = {name: values.detach().clone() for name, values in model.named_parameters()}
    rows: list[tuple[list[int], Any, Any]] = []
    score = trainer._get_per_token_logps_and_entropies

    def watch(scored: Any, ids: Any, attended: Any, length: int, **named: Any) -> Any:
        result = score(scored, ids, attended, length, **named)
        if named.get("pixel_values") is not None and len(ids) == 4:
            for row, mask, logprobs in zip(ids, attended, result[0], strict=True):
                rows.append((row[mask == 1].tolist(), mask[-length:], logprobs.detach()))
        return result

    trainer._get_per_token_logps_and_entropies = watch
    first = {}
    chat = TemplateChat(processor)
    images = chat.images
    assert images is not None
    initial = model_of(family, processor)
    trainer.train()
    trainer.evaluate()
    for columns in played:
        for prompt, completion, shown in zip(
            columns["prompt_ids"], columns["completion_ids"], columns["images"], strict=True
        ):
            assert (prompt + completion).count(images.feature_id) == sum(map(images.features, shown))
            assert len(shown) == 2
            first[tuple(prompt + completion)] = shown, len(completion)
    assert rows
    checked = 0
    for ids, mask, logprobs in rows[:4]:  # of the first pass, with the weights that it began with
        shown, length = first[tuple(ids)]
        row = torch.tensor([ids])
        with torch.no_grad():
            scores = initial(row, **images.all_inputs([shown], row)).logits[0, -length - 1 : -1].log_softmax(-1)
        expected = scores.gather(1, torch.tensor(ids[-length:])[:, None])[:, 0]
        torch.testing.assert_close(logprobs[mask == 1], expected, rtol=1e-3, atol=1e-3)
        checked += 1
    assert checked == 4
    moved = {name for name, values in model.named_parameters() if not torch.equal(values, before[name])}
    assert any("vision" in name or "visual" in name for name in moved)
    assert any("language_model" in name or "text_model" in name for name in moved)


def test_an_environment_factory_is_refused_images() -> None:
    with pytest.raises(ConfigError, match="images needs rollout_func"):
        _ = spec_of().environment_factory


@pytest.mark.trl
@pytest.mark.parametrize(
    ("grpo", "changes", "message"),
    [
        ({}, {"processing_class": tiny_tokenizer}, "images need the processor of a vision-language model"),
    ],
)
def test_a_trainer_that_cannot_show_images_is_refused_when_it_is_made(
    grpo: dict[str, Any], changes: dict[str, Any], message: str, tmp_path: Any
) -> None:
    from support import tiny_trainer

    spec = spec_of()
    changes = {name: make() for name, make in changes.items()}
    with pytest.raises(ConfigError, match=message):
        tiny_trainer.make(tmp_path, spec, grpo={"max_steps": 1, **grpo}, **changes)


# ---------------------------------------------------------------------------------------------------------------------
# Evaluation, records and the viewer
# ---------------------------------------------------------------------------------------------------------------------


def test_a_server_sees_each_image_and_the_record_and_the_page_have_it(serve: Any, tmp_path: Any) -> None:
    from support.chat_server import said

    def answer(body: dict[str, Any], times: int) -> tuple[int, Any]:
        url = body["messages"][-1]["content"][0]["image_url"]["url"]
        pixels = np.asarray(_decoded(PngImage(b64decode(url.removeprefix("data:image/png;base64,")))))
        return 200, said("<action>1</action>" if pixels[8, 12, 0] else "<action>0</action>")

    options: PlayArgs = {"images": "only", "act": int, "success": 2.0}
    server = ask(serve(answer).url)
    found = evaluate(BrightSide, server, episodes=3, env_kwargs={"turns": 2}, out=tmp_path, **options)
    assert found.rows[0].success is not None
    assert found.rows[0].success.mean == 1.0
    [first, *_] = read_records(tmp_path)
    assert [len(codes) for codes in first["images"] or []] == [1, 1, 1]
    seed = first["task"]["seed"]
    env = ImageObservation(BrightSide(turns=2), text=False)
    assert (first["images"] or [])[0] == [b64encode(env.reset(seed=seed)[1]["images"][0].png).decode()]
    shown = body(first)
    assert [turn["images"] for turn in shown["turns"]] + [shown["last_images"]] == first["images"]
    assert body({**first, "images": [["<script>"], ["AA=="]]})["turns"][1]["images"] == ["AA=="]
    assert "images" not in body({**first, "images": [["<script>"], ["AA=="]]})["turns"][0]


def test_a_record_leaves_out_the_images_beyond_its_limit() -> None:
    big = PngImage(image(0).png + b"\0" * MAX_IMAGE_BYTES)
    turns = tuple(Turn("", Answer("", "l"), 0.0, True, 0, 0) for _ in range(2))
    messages = [Message("user", "", (image(0),)), Message("assistant", "l"), Message("user", "", (big,))]
    messages += [Message("assistant", "l"), Message("user", "", (image(1),))]
    record = as_record(EpisodeResult(Task("A", 0), StopReason.SUCCESS, turns, tuple(messages)))
    assert [len(codes) for codes in record["images"] or []] == [1, 0, 0]


class Fussy(Drawn):
    """Environment that can render, whose constructor fails then for a reason of its own."""

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(render_mode)
        if render_mode is not None:
            len(render_mode, 5)  # type: ignore[call-arg]


class Unadorned(Drawn):
    """Environment whose constructor has no render mode."""

    def __init__(self) -> None:
        super().__init__()


def test_a_type_error_that_is_not_about_the_render_mode_is_shown() -> None:
    def made(maker: Callable[..., Drawn]) -> TextEnvironment:
        spec = EnvSpec(maker, images="only")
        return spec.make(next(iter(spec.weights)))

    with pytest.raises(TypeError, match="len"):
        made(Fussy)
    for maker in (Unadorned, lambda **given: Drawn(None, **given)):
        made(maker).close()

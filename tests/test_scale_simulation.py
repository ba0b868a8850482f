"""The simulation of many GPUs obeys what holds for every system of queues, whatever is played."""

import math
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from support.lanes import examples

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import bench_scale_simulation as simulation

SLACK = 1 + 1e-6

engines = st.builds(
    simulation.EngineModel,
    base_s=st.floats(1e-4, 0.1),
    sequence_s=st.floats(0, 1e-3),
    context_s=st.floats(0, 1e-6),
    prefill_s=st.floats(0, 1e-3),
    slots=st.integers(1, 8),
    cache_tokens=st.integers(1, 10**4),
)
layouts = st.builds(
    simulation.Layout,
    name=st.just("drawn"),
    gpus=st.just(1),
    trainers=st.just(1),
    engines=st.integers(1, 3),
    clients=st.integers(1, 3),
    workers=st.integers(1, 8),
    colocated=st.booleans(),
    engine=engines,
    client_s=st.floats(0, 0.05),
)
games = st.lists(
    st.lists(st.tuples(st.integers(1, 40), st.floats(0, 2)), min_size=1, max_size=4), min_size=1, max_size=12
)


def play(layout, games, in_flight):
    lengths = [[length for length, _ in game] for game in games]
    delays = [[delay for _, delay in game] for game in games]
    return simulation.play(layout, lengths, delays, prompt=20, observation=5, in_flight=in_flight)


@examples(60)
@given(layout=layouts, games=games, in_flight=st.integers(1, 12))
def test_nothing_is_faster_than_any_of_its_bottlenecks_and_little_holds(layout, games, in_flight):
    outcome, engine = play(layout, games, in_flight), layout.engine
    seconds = outcome.seconds * SLACK + 1e-9
    turns = [turn for game in games for turn in game]
    assert outcome.tokens == sum(length for length, _ in turns)
    assert outcome.requests == outcome.steps == len(turns)
    assert outcome.most_running <= engine.slots
    # An engine gives each of its slots one token a step, and a step takes at least as long as with one sequence.
    assert outcome.tokens * engine.base_s <= seconds * engine.slots * layout.engines
    assert outcome.tokens * engine.sequence_s <= seconds * layout.engines
    assert sum(delay for _, delay in turns) <= seconds * layout.workers
    if not layout.colocated:
        assert outcome.requests * layout.client_s <= seconds * layout.clients
    alone = [sum(length * (engine.base_s + engine.sequence_s) + delay for length, delay in game) for game in games]
    assert max(alone) <= seconds
    assert sum(alone) <= seconds * min(in_flight, len(games))
    assert all(busy <= seconds for busy in outcome.busy_s.values())
    # Little: as many are alive in the mean as arrive in the time that one takes.
    assert math.isclose(outcome.alive * outcome.seconds, outcome.sojourn_s * outcome.episodes, rel_tol=1e-6)
    assert outcome.alive <= in_flight * SLACK


@examples(20)
@given(layout=layouts, game=games.map(lambda games: games[0]))
def test_an_episode_that_is_alone_takes_what_its_parts_take(layout, game):
    """Told without the simulation: prompts are read once, and each token reads the cache of all before it."""
    engine, context, expected = layout.engine, 0, 0.0
    for turn, (length, delay) in enumerate(game):
        fresh = 20 + 3 if turn == 0 else 5 + 3 - 1  # with the marks of ByteChat
        context += fresh
        expected += layout.client_s + fresh * engine.prefill_s + length * (engine.base_s + engine.sequence_s) + delay
        expected += engine.context_s * context * length
        context += length
    assert play(layout, [game], 1).seconds == pytest.approx(expected, rel=0.05)


def test_the_same_seed_gives_the_same_and_another_seed_another():
    layout = replace(simulation.LAYOUTS[1], client_s=1e-3)
    runs = [
        simulation.simulate(
            layout, simulation.Work(mean_answer=20), simulation.LATENCIES[2], episodes=48, in_flight=32, seed=seed
        )
        for seed in (0, 0, 1)
    ]
    assert runs[0] == runs[1]
    assert runs[0].seconds != runs[2].seconds


def test_a_part_of_a_layout_has_its_share_of_what_the_whole_one_does():
    whole = simulation.Layout("8", 8, trainers=4, engines=4, clients=4, workers=64, client_s=1e-3)
    work = simulation.Work(mean_answer=20)
    rates = [
        simulation.simulate(
            replace(whole, slice=slice_), work, simulation.LATENCIES[1], episodes=600 // slice_, in_flight=240 // slice_
        ).tokens_s
        * slice_
        for slice_ in (1, 2)
    ]
    assert rates[0] == pytest.approx(rates[1], rel=0.1)


@pytest.mark.parametrize(
    ("scarce", "said"),
    [
        ({"workers": 1}, "environment workers"),
        ({"client_s": 0.5}, "client processes"),
        ({"engine": replace(simulation.H100, slots=2)}, "engine slots"),
        ({}, "episodes in flight"),
    ],
)
def test_what_is_scarce_is_named(scarce, said):
    plenty = simulation.Layout("1", 1, trainers=1, engines=1, clients=1, workers=1000, client_s=1e-4)
    outcome = simulation.simulate(
        replace(plenty, **scarce), simulation.Work(mean_answer=20), simulation.LATENCIES[1], episodes=80, in_flight=32
    )
    assert simulation.bottleneck(outcome).startswith(said)


def test_the_model_of_the_gpu_is_near_what_was_published_and_not_above_it():
    for row in simulation.published():
        assert 0.75 * row["measured_tokens_s"] < row["model_tokens_s"] < 1.02 * row["measured_tokens_s"]

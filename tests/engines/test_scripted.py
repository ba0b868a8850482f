from gym_trl.engines.scripted import ScriptedEngine
from gym_trl.types import Request


def request(name, **fields):
    return Request(name, [1], **{"max_tokens": 10, "seed": 0, **fields})


def engine(delays, slots=None):
    return ScriptedEngine(lambda request: [1], delay=lambda request: delays[request.id], slots=slots)


def ended(scripted, ticks):
    return [c.request_id for _ in range(ticks) for c in scripted.collect()]


def test_requests_finish_when_their_delay_is_over_and_not_in_order():
    scripted = engine({"slow": 5, "fast": 1, "also fast": 1})
    for name in ("slow", "fast", "also fast"):
        scripted.submit(request(name))
    assert ended(scripted, 1) == ["fast", "also fast"]
    assert ended(scripted, 3) == []
    assert ended(scripted, 1) == ["slow"]
    assert scripted.steps == 5


def test_requests_beyond_the_slots_wait():
    scripted = engine({"a": 3, "b": 3}, slots=1)
    scripted.submit(request("a"))
    scripted.submit(request("b"))
    assert ended(scripted, 3) == ["a"]
    assert ended(scripted, 3) == ["b"]
    assert scripted.steps == 6


def test_a_cancelled_request_frees_its_slot():
    scripted = engine({"a": 100, "b": 1}, slots=1)
    scripted.submit(request("a"))
    assert ended(scripted, 1) == []
    scripted.submit(request("b"))
    scripted.cancel("a")
    assert ended(scripted, 1) == ["b"]
    assert scripted.cancelled == ["a"]
    assert not scripted._running


def test_unknown_requests_cannot_be_cancelled_and_that_is_no_error():
    scripted = engine({})
    scripted.cancel("never seen")
    assert scripted.cancelled == []


def test_an_idle_engine_answers_at_once():
    assert ended(engine({}), 1) == []

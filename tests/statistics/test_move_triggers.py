import numpy as np
import pytest
from planted import make_trace, sink_at, values_at, within_binomial

from sinkscope.statistics import Threshold, summarise
from sinkscope.statistics.move_triggers import TRIGGERS, TriggerTest, shares_of, trigger_shares
from sinkscope.statistics.movement import Movement


def commits(at, steps, width=24):
    """written: position ``at[step]`` is committed in each step, −1 for none."""
    written = np.full((steps, width), -1)
    for step, position in enumerate(at):
        if position >= 0:
            written[step, position] = 1
    return written


def dense_shares(main, written, blocks, shift):
    """One shift, move by move, around the transitions."""
    steps, counts = len(main), dict.fromkeys(TRIGGERS, 0)
    when = {
        (int(p), (int(s) + shift) % (steps - 1))
        for s, p in zip(*np.nonzero(written >= 0), strict=True)
        if s < steps - 1
    }
    changes = {
        (t + shift) % (steps - 1) for t in range(steps - 1) if blocks is not None and 0 <= blocks[t] != blocks[t + 1]
    }
    moves = 0
    for t, layer, head in np.ndindex(steps - 1, *main.shape[1:]):
        old, new = main[t, layer, head], main[t + 1, layer, head]
        if old < 0 or new < 0 or old == new:
            continue
        moves += 1
        left, entered = (int(old), t) in when, (int(new), t) in when
        counts["left"] += left
        counts["entered"] += entered
        own = left or entered
        counts["own" if own else "block" if t in changes else "neither"] += 1
    return [counts[name] / moves for name in TRIGGERS]


@pytest.mark.parametrize("blocked", [True, False])
@pytest.mark.parametrize("seed", range(2))
def test_all_shifts_are_those_counted_move_by_move(seed, blocked):
    """A position may be committed more than once, as samplers that mask again do."""
    rng = np.random.default_rng(seed)
    main = rng.integers(-1, 12, (16, 2, 3))
    written = np.where(rng.random((16, 16)) < 0.1, 1, commits(rng.permutation(12).tolist() + [-1] * 4, 16, 16))
    blocks = np.sort(rng.integers(-1, 4, 16)) if blocked else None
    found = trigger_shares(main, written, blocks)
    assert found.shape == (len(TRIGGERS), 15)
    for shift in range(15):
        np.testing.assert_allclose(found[:, shift], dense_shares(main, written, blocks, shift))
    np.testing.assert_allclose(found[[0, 3, 4]].sum(axis=0), 1)  # own, block and neither share out all moves


def test_moves_that_know_nothing_of_the_commits_are_found_at_the_stated_rate():
    rejected, over = dict.fromkeys(TRIGGERS, 0), []
    for seed in range(50):
        test = TriggerTest(null=np.zeros((len(TRIGGERS), 199)))
        for one in range(5):
            rng = np.random.default_rng([seed, one])
            main = np.repeat(rng.integers(0, 24, (20, 1, 3)), 1, axis=1)
            stay = rng.random((19, 1, 3)) < 0.5
            for step in range(1, 20):
                main[step] = np.where(stay[step - 1], main[step - 1], main[step])
            written = commits(rng.permutation(24)[:20], 20)
            shares = trigger_shares(main, written, np.arange(20) // 5)
            over.append(shares[:, 0] - shares.mean(axis=1))
            test.add(shares, one, seed)
        for name in TRIGGERS:
            rejected[name] += test.p_value(name) <= 0.05
    for name, count in rejected.items():
        assert within_binomial(count, 50), (name, rejected)
    assert sum(rejected.values()) > 0  # nor blind
    np.testing.assert_allclose(np.mean(over, axis=0), 0, atol=4 * np.std(over) / np.sqrt(250))


def test_where_nothing_moves_there_is_no_trigger_and_the_last_commit_triggers_nothing():
    assert trigger_shares(np.full((9, 1, 2), 4), commits(range(9), 9), None) is None
    assert {TriggerTest().p_value(name) for name in TRIGGERS} == {1.0}
    main = np.array([1, 1, 2, 2])[:, None, None]
    assert trigger_shares(main, commits([-1, -1, -1, 2], 4), None)[TRIGGERS.index("own")].tolist() == [0, 0, 0]
    main = np.array([1, 30, 2])[:, None, None]  # beyond the canvas that was written
    assert trigger_shares(main, commits([1, 5, 6], 3), None)[TRIGGERS.index("left"), 0] == 0.5


def test_a_rare_trigger_that_never_fires_is_not_below_chance():
    """One move and one commit a prompt: none coincides, and every prompt's share lies the same bit below chance."""
    test, over = TriggerTest(), []
    for at in range(2, 10):
        main = np.where(np.arange(30) <= at, 3, 9)[:, None, None]
        shares = trigger_shares(main, commits([-1] * 20 + [9] + [-1] * 9, 30), None)
        over.append(shares[0, 0] - shares[0].mean())
        test.add(shares, at)
    low, high = test.widened("own", np.inf, -np.inf)
    assert max(over) < -0.02  # a bootstrap of these prompts has no zero in it
    assert low <= np.mean(over) < 0 <= high
    assert test.p_value("own") == 1
    exact = test.observed[0] / 8 - np.quantile(test.null[0] / 8, [0.975, 0.025])
    assert (low, high) == pytest.approx(exact)


@pytest.mark.parametrize(
    ("sampler", "first"),
    [({"block": 4}, 10), ({"block": 4, "block_steps": 2}, 0), ({"cache": "fast-dllm-dual:block=4"}, 10)],
)
def test_blocks_begin_behind_the_prompt_or_stand_at_multiples(sampler, first):
    """In block diffusion the prompt ends within a block, whose other tokens are written first; Dream's cache gives it
    its blocks.
    """
    trace = make_trace(sink_at(np.arange(20) % 7, width=30), prompt_length=10, block=4)
    trace.manifest["sampler"] = sampler
    canvas = summarise(trace, [Threshold(3.0)]).canvas
    assert canvas.settings.first_block == first
    blocks = np.array([(10 + step - first) // 4 for step in range(20)])
    prompt = summarise(trace, [Threshold(3.0)])
    expected = trigger_shares(prompt.main_at(Threshold(3.0)), canvas.written, blocks)
    assert shares_of(prompt, Threshold(3.0)) == pytest.approx(expected)
    edges = first + 4 * (blocks + 1) - 1
    values = values_at(Movement(), summarise(trace, [Threshold(3.0)]), Threshold(3.0))
    expected = np.polyfit(np.arange(20), np.arange(20) % 7 - edges, 1)[0]
    assert values["movement.drift_relative", (("frontier", "block_edge"),)] == pytest.approx(expected)

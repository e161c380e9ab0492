"""The walk against planted rounds, hand counts and its own bookkeeping."""

import pytest
import tiny
import torch
from hypothesis import given
from hypothesis import strategies as st

from draftprobe.measure.acceptance import expected, expected_difference, walk, walk_run
from draftprobe.measure.replay import Observations, observe


def observations(*sequences, whole=True, steps=3):
    """From run lengths per slot; each sequence is one counted run behind a prompt of 2 tokens."""
    lengths = torch.tensor([r for lengths in sequences for r in lengths])
    left = torch.tensor([len(x) - i for x in sequences for i in range(len(x))])
    order = torch.arange(1, steps + 1)[:, None]
    valid = order <= left
    correct = valid & (order <= lengths)
    return Observations(
        sequence=torch.tensor([s for s, x in enumerate(sequences) for _ in x]),
        slot=torch.tensor([i for x in sequences for i in range(len(x))]),
        started=torch.tensor([i > 0 for x in sequences for i in range(len(x))]),
        valid=valid,
        inside=valid,
        correct=correct,
        log_likelihood=torch.zeros(valid.shape),
        whole=whole,
        source="greedy",
    )


def test_the_walk_finds_the_rounds_that_wrote_the_text(tmp_path):
    made = tiny.drafter()
    states, planted = tiny.planted_states(tmp_path / "s", made, count=16, steps=3)
    found = walk(observe(made, states, 3))
    assert found.sequences == tuple(range(16))
    assert found.rounds == tuple(len(rounds) for rounds in planted)
    assert found.accepted == tuple(sum(right for _, right in rounds) for rounds in planted)
    starts = [2 + index % 4 for index in range(16)]
    wanted = [n - 1 - p for n, p in zip(states.lengths, starts, strict=True)]
    assert list(found.emitted) == wanted
    assert found.length.value == pytest.approx(sum(wanted) / sum(map(len, planted)))
    assert 1.5 < found.length.value < 3.5  # not vacuous
    assert found.length.low < found.length.value < found.length.high


def test_a_shorter_chain_rounds_off_earlier(tmp_path):
    """A chain of 1 can accept one draft a round, however many more would be right."""
    made = tiny.drafter()
    states, _ = tiny.planted_states(tmp_path / "s", made)
    lengths = [walk(observe(made, states, steps)).length.value for steps in (1, 2, 3)]
    assert 1 < lengths[0] < lengths[1] < lengths[2]
    assert lengths[0] <= 2


@pytest.mark.parametrize(
    ("lengths", "counts"),
    [
        ([0, 0, 0], (3, 3, 0)),
        ([1, 3, 0], (2, 3, 1)),  # accept 1, bonus; then the last token
        ([2, 9, 9, 0, 1, 0], (3, 6, 3)),  # 0..2, then 3, then 4..5
        ([3, 9, 9], (1, 3, 3)),  # drafts alone reach the end: the bonus token is cut
        ([5, 9, 9], (1, 3, 3)),
        ([], (0, 0, 0)),
    ],
)
def test_one_run_by_hand(lengths, counts):
    assert walk_run(lengths) == counts


@given(st.lists(st.integers(0, 5), max_size=60))
def test_rounds_and_accepted_drafts_make_the_text(lengths):
    rounds, emitted, accepted = walk_run(lengths)
    assert emitted == len(lengths)
    assert 0 <= rounds + accepted - emitted <= min(1, len(lengths))
    assert rounds <= emitted <= rounds * (1 + max(lengths, default=0))


@given(st.lists(st.integers(0, 5), min_size=1, max_size=60), st.data())
def test_better_drafts_never_need_more_rounds_at_a_healthy_text(lengths, data):
    """r(t + 1) >= r(t) - 1 holds for teacher-forced drafts that depend on the text alone."""
    for t in range(1, len(lengths)):
        lengths[t] = max(lengths[t], lengths[t - 1] - 1)
    at = data.draw(st.integers(0, len(lengths) - 1))
    better = [*lengths[:at], lengths[at] + 1, *lengths[at + 1 :]]
    for t in range(1, len(better)):
        better[t] = max(better[t], better[t - 1] - 1)
    assert walk_run(better)[0] <= walk_run(lengths)[0]


def test_pooled_over_sequences_by_hand():
    # The first slot of each sequence predicts the prefill's token: no decode stands there.
    pooled = walk(observations([3, 0, 1, 0, 0], [0, 2, 1, 0], steps=3))
    assert pooled.rounds == (3, 1)  # 0 | 1 0 | 0   and   2 1 0
    assert pooled.emitted == (4, 3)
    assert pooled.accepted == (1, 2)
    assert pooled.drafted == (9, 3)
    assert pooled.length.value == 7 / 4
    assert (pooled.length.n, pooled.length.clusters) == (4, 2)


def test_each_answer_of_a_chat_is_walked_alone():
    lengths = [0, 2, 1, 0, 0, 0, 1]
    slots = [0, 1, 2, 3, 7, 8, 9]
    chat = observations(lengths, steps=2)
    started = torch.tensor([False, True, True, True, False, True, True])
    parts = {name: getattr(chat, name) for name in ("sequence", "valid", "inside", "correct")}
    split = Observations(
        slot=torch.tensor(slots), started=started, whole=True, source="dataset",
        log_likelihood=chat.log_likelihood, **parts,
    )  # fmt: skip
    found = walk(split)
    # 2 1 0 in one round, its bonus token cut; then 0, and 1 with its bonus token cut
    assert (found.rounds, found.emitted, found.accepted) == ((3,), (5,), (3,))


def test_plain_text_starts_behind_its_first_token(tmp_path):
    """Every token counts: x_0 is the prompt, x_1 the prefill's, x_2 the first that is drafted."""
    made = tiny.drafter()
    tokens, h, planted = tiny.plant(made, 1, 14, 3, torch.Generator().manual_seed(5))
    text = (tokens, torch.ones(14, dtype=torch.bool), h)
    found = walk(observe(made, tiny.save_states(tmp_path / "s", [text], "dataset"), 3))
    assert (found.emitted, found.rounds) == ((12,), (len(planted),))


def test_a_sample_is_not_walked_but_estimated():
    some = observations([0, 2, 1, 0], [1, 0, 3, 1, 0], whole=False, steps=2)
    with pytest.raises(ValueError, match="sample"):
        walk(some)
    # chains right at step 1: 2 + 3 of 9; at steps 1 and 2: 1 + 1 of the 7 that have a second token
    assert expected(some).value == pytest.approx(1 + 5 / 9 + 2 / 7)
    assert expected(some).low < expected(some).value < expected(some).high


def test_a_difference_is_that_of_the_two_lengths():
    a = observations([0, 0, 1, 0, 0], [0, 2, 1, 0], [0, 0, 0, 0])
    b = observations([0, 2, 1, 0, 1], [0, 2, 1, 0], [0, 3, 2, 1])
    difference = expected_difference(a, b)
    assert difference.value == pytest.approx(expected(b).value - expected(a).value)
    same = expected_difference(a, a)
    assert (same.value, same.low, same.high) == (0, 0, 0)


def test_text_without_a_second_counted_token_has_no_rounds():
    nothing = walk(observations([0], [1]))
    assert nothing.sequences == ()
    assert nothing.length.value is None

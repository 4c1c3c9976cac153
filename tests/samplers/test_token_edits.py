"""allowed_token_ids, bad_words, min_tokens, logit_bias."""

from __future__ import annotations

import torch

from slotwise.interfaces.logits_processor import BatchUpdate, LogitsRows, RowMove

EOS = 5
INF = float("inf")


def generate(tools, logits, num_tokens, **fields):
    """Greedy ids of one row with constant logits, until EOS."""
    output = []
    processors = tools.make_processors(len(logits), tools.row(output, **fields))
    for _ in range(num_tokens):
        edits = processors.bind(tools.plain_rows(1))
        output.extend(tools.run(tools.make_sampler(len(logits)), [logits], tools.make_metadata(1), edits=edits))
        if output[-1] == EOS:
            break
    return output


def test_rows_that_want_nothing_bind_nothing(tools):
    assert tools.edits(4, tools.row(), tools.row(min_tokens=0)) is None


def test_min_tokens_releases_eos_exactly_on_time(tools):
    for minimum, expected in [(0, 1), (1, 2), (4, 5), (31, 32), (32, 32)]:
        fields = {"logit_bias": {EOS: 100.0}, "min_tokens": minimum, "stop_token_ids": {EOS}}
        output = generate(tools, [0.0, 0.0, 1.0, 0.0, 0.0, 0.0], 32, **fields)
        assert len(output) == expected
        assert (output[-1] == EOS) == (minimum < 32)
        assert EOS not in output[:minimum]


def test_min_tokens_bans_every_stop_id_of_its_row_only(tools):
    logits = [[0.0, 1.0, 3.0, 2.0]] * 2
    edits = tools.edits(4, tools.row([9]), tools.row([9], min_tokens=2, stop_token_ids={2, 3}))
    assert tools.run(tools.make_sampler(4), logits, tools.make_metadata(2), edits=edits) == [2, 1]


def test_min_tokens_counts_drafts(tools):
    processors = tools.make_processors(3, tools.row([0], min_tokens=3, stop_token_ids={2}))
    logits = torch.zeros(3, 3)
    rows = LogitsRows(requests=[0, 0, 0], drafts=[(), (1,), (1, 1)], has_drafts=True)
    processors.bind(rows).before_argmax(logits)
    assert logits[:, 2].tolist() == [-INF, -INF, 0.0]


def test_min_tokens_leaves_the_end_where_nothing_else_is_left(tools):
    logits = [[-INF, -INF, 1.0, -INF], [0.0, -INF, 1.0, -INF]]
    rows = [tools.row(min_tokens=5, stop_token_ids={2, 3}) for _ in range(2)]
    assert tools.edited(logits, *rows).tolist() == [[-INF, -INF, 1.0, -INF], [0.0, -INF, -INF, -INF]]


def test_bad_word_of_one_token_never_comes(tools):
    assert generate(tools, [0.0, 2.0, 1.0], 3, bad_words=[[1]]) == [2, 2, 2]


def test_only_the_last_token_of_a_bad_word_is_banned_and_only_after_the_rest(tools):
    logits = [[0.0, 1.0, 9.0, 2.0]]

    def next_id(output):
        edits = tools.edits(4, tools.row(output, bad_words=[[0, 1, 2]]))
        return tools.run(tools.make_sampler(4), logits, tools.make_metadata(1), edits=edits)[0]

    assert next_id([0, 1]) == 3
    assert next_id([3, 0, 1]) == 3
    assert [next_id(output) for output in ([], [1], [0], [1, 0], [0, 1, 3], [2, 1])] == [2] * 6


def test_bad_words_reach_into_drafts(tools):
    processors = tools.make_processors(4, tools.row([0], bad_words=[[0, 1, 2], [3]]))
    logits = torch.zeros(3, 4)
    rows = LogitsRows(requests=[0, 0, 0], drafts=[(), (1,), (1, 1)], has_drafts=True)
    processors.bind(rows).before_argmax(logits)
    assert logits.tolist() == [[0, 0, 0, -INF], [0, 0, -INF, -INF], [0, 0, 0, -INF]]


def test_bad_words_of_one_row_leave_the_others_alone(tools):
    edits = tools.edits(3, tools.row(), tools.row(bad_words=[[2], [1]]), tools.row())
    assert tools.run(tools.make_sampler(3), [[0.0, 1.0, 2.0]] * 3, tools.make_metadata(3), edits=edits) == [2, 0, 2]


def test_allowed_ids_hold_for_greedy_and_random_rows(tools):
    logits = [[9.0, 0.0, 9.0, 9.0, 1.0, 9.0]] * 2
    for _ in range(50):
        edits = tools.edits(6, *[tools.row(allowed_token_ids=[1, 4]) for _ in range(2)])
        greedy, random = tools.run(tools.make_sampler(6), logits, tools.make_metadata(2, temperature=[0.0, 1.0]), edits=edits)
        assert greedy == 4
        assert random in {1, 4}


def test_bias_is_clamped_and_cannot_lift_a_ban(tools):
    assert tools.edited([[0.0, 150.0, 0.0]], tools.row(logit_bias={0: 1e9})).tolist() == [[100.0, 150.0, 0.0]]
    assert tools.edited([[0.0, 150.0, 0.0]], tools.row(logit_bias={0: 100.0, 1: -60.0})).tolist() == [[100.0, 90.0, 0.0]]
    assert tools.edited([[90.0, 0.0, 1.0]], tools.row(logit_bias={0: 100.0}, allowed_token_ids=[1, 2])).tolist() == [[-INF, 0.0, 1.0]]


def test_bans_come_before_penalties_and_bias_before_them(tools):
    """Bias 3 on a logit of -1 makes it 2; a repetition penalty then halves it to 1. The other way round it would be 1 only by chance."""
    row = tools.row((), [0], repetition_penalty=2.0, logit_bias={0: 3.0})
    assert tools.edited([[-1.0, 0.9]], row).tolist() == [[1.0, float(torch.tensor(0.9))]]


def test_edits_follow_rows_that_leave_join_and_move(tools):
    processors = tools.make_processors(4, tools.row(logit_bias={0: 1.0}), tools.row(logit_bias={1: 1.0}), tools.row(allowed_token_ids=[2]))

    def now(num_rows):
        logits = torch.zeros(num_rows, 4)
        bound = processors.bind(tools.plain_rows(num_rows))
        if bound is not None:
            bound.before_argmax(logits)
        return logits.tolist()

    assert now(3) == [[1, 0, 0, 0], [0, 1, 0, 0], [-INF, -INF, 0, -INF]]
    processors.update(BatchUpdate(num_rows=2, removed=[0], moved=[RowMove(source=2, target=0)]))
    assert now(2) == [[-INF, -INF, 0, -INF], [0, 1, 0, 0]]
    processors.update(BatchUpdate(num_rows=2, removed=[0], added=[(0, tools.row())]))
    assert now(2) == [[0, 0, 0, 0], [0, 1, 0, 0]]
    processors.update(BatchUpdate(num_rows=2, moved=[RowMove(source=0, target=1, is_swap=True)]))
    assert now(2) == [[0, 1, 0, 0], [0, 0, 0, 0]]
    processors.update(BatchUpdate(num_rows=0, removed=[0, 1]))
    assert processors.bind(tools.plain_rows(0)) is None

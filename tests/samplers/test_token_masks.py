from __future__ import annotations

import torch

EOS = 5


def generate(tools, logits, num_tokens, **fields):
    """Greedy ids of one row with constant logits, until EOS."""
    output = []
    sampler = tools.make_sampler(len(logits))
    for _ in range(num_tokens):
        output.extend(tools.run(sampler, [logits], tools.make_metadata(1, output_token_ids=[output], **fields)))
        if output[-1] == EOS:
            break
    return output


def test_min_tokens_releases_eos_exactly_on_time(tools):
    for minimum, expected in [(0, 1), (1, 2), (4, 5), (31, 32), (32, 32)]:
        fields = {"logit_bias": {0: {EOS: 100.0}}, "min_tokens": {0: (minimum, frozenset({EOS}))}}
        output = generate(tools, [0.0, 0.0, 1.0, 0.0, 0.0, 0.0], 32, **fields)
        assert len(output) == expected
        assert (output[-1] == EOS) == (minimum < 32)
        assert EOS not in output[:minimum]


def test_min_tokens_bans_every_stop_id_of_its_row_only(tools):
    logits = [[0.0, 1.0, 3.0, 2.0]] * 2
    metadata = tools.make_metadata(2, output_token_ids=[[9], [9]], min_tokens={1: (2, frozenset({2, 3}))})
    assert tools.run(tools.make_sampler(4), logits, metadata) == [2, 1]


def test_bad_word_of_one_token_never_comes(tools):
    assert generate(tools, [0.0, 2.0, 1.0], 3, bad_words={0: [[1]]}) == [2, 2, 2]


def test_only_the_last_token_of_a_bad_word_is_banned_and_only_after_the_rest(tools):
    logits = [[0.0, 1.0, 9.0, 2.0]]

    def next_id(output):
        return tools.run(tools.make_sampler(4), logits, tools.make_metadata(1, output_token_ids=[output], bad_words={0: [[0, 1, 2]]}))[0]

    assert next_id([0, 1]) == 3
    assert next_id([3, 0, 1]) == 3
    assert [next_id(output) for output in ([], [1], [0], [1, 0], [0, 1, 3], [2, 1])] == [2] * 6


def test_bad_words_of_one_row_leave_the_others_alone(tools):
    logits = [[0.0, 1.0, 2.0]] * 3
    metadata = tools.make_metadata(3, output_token_ids=[[], [], []], bad_words={1: [[2], [1]]})
    assert tools.run(tools.make_sampler(3), logits, metadata) == [2, 0, 2]


def test_allowed_ids_hold_for_greedy_and_random_rows(tools):
    mask = torch.ones(2, 6, dtype=torch.bool)
    mask[:, [1, 4]] = False
    logits = [[9.0, 0.0, 9.0, 9.0, 1.0, 9.0]] * 2
    for _ in range(50):
        greedy, random = tools.run(
            tools.make_sampler(6), logits, tools.make_metadata(2, temperature=[0.0, 1.0], allowed_token_ids_mask=mask)
        )
        assert greedy == 4
        assert random in {1, 4}


def test_bias_is_clamped_and_cannot_lift_a_ban(tools):
    logits = [[0.0, 150.0, 0.0]]
    assert tools.run(tools.make_sampler(3), logits, tools.make_metadata(1, logit_bias={0: {0: 1e9}})) == [1]
    assert tools.run(tools.make_sampler(3), logits, tools.make_metadata(1, logit_bias={0: {0: 100.0, 1: -60.0}})) == [0]
    mask = torch.tensor([[True, False, False]])
    metadata = tools.make_metadata(1, logit_bias={0: {0: 100.0}}, allowed_token_ids_mask=mask)
    assert tools.run(tools.make_sampler(3), [[90.0, 0.0, 1.0]], metadata) == [2]


def test_bans_come_before_penalties_and_bias_before_them(tools):
    """Bias 3 on a logit of -1 makes it 2; a repetition penalty then halves it to 1, below 1.5. The other way round it would stay at 1."""
    fields = {"penalties": (2.0, 0.0, 0.0), "prompt_token_ids": [[0]], "output_token_ids": [[]], "logit_bias": {0: {0: 3.0}}}
    metadata = tools.make_metadata(1, num_logprobs=-1, **fields)
    assert tools.run(tools.make_sampler(2), [[-1.0, 0.9]], metadata) == [0]
    assert tools.run(tools.make_sampler(2), [[-1.0, 1.1]], metadata) == [1]

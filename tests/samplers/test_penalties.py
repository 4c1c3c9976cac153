from __future__ import annotations

import numpy as np
import pytest
import torch

from slotwise.interfaces.logits_processor import BatchUpdate, LogitsRows, RowMove


def penalised(tools, repetition=1.0, frequency=0.0, presence=0.0, *, prompt=(), output=()):
    return tools.row(output, prompt, repetition_penalty=repetition, frequency_penalty=frequency, presence_penalty=presence)


@pytest.mark.parametrize(("logit", "expected"), [(2.0, 0.25), (-2.0, -4.75)])
def test_worked_numbers(tools, logit, expected):
    assert tools.edited([[logit, 0.5]], penalised(tools, 2.0, 0.5, 0.25, output=[0])).tolist() == [[expected, 0.5]]


def test_repetition_sees_the_prompt_and_the_others_do_not(tools):
    found = tools.edited([[2.0, 2.0, 2.0]], penalised(tools, 2.0, 0.5, 0.25, prompt=[1, 1], output=[0, 0]))
    assert found.tolist() == [[2.0 / 2 - 2 * 0.5 - 0.25, 1.0, 2.0]]


def test_rows_have_their_own_penalties_and_history(tools):
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 3, (4, 12)).astype(np.float32)
    rules = [(1.0, 0.0, 0.0), (1.3, 0.5, 0.0), (1.0, -1.0, 1.5), (0.7, 0.0, 2.0)]
    prompts = [rng.integers(0, 12, 5).tolist() for _ in range(4)]
    outputs = [rng.integers(0, 12, size).tolist() for size in (3, 0, 6, 4)]
    rows = [penalised(tools, *rule, prompt=prompt, output=output) for rule, prompt, output in zip(rules, prompts, outputs, strict=True)]
    found = tools.edited(logits.tolist(), *rows).softmax(-1).numpy()
    for row in range(4):
        names = dict(zip(("repetition", "frequency", "presence"), rules[row], strict=True))
        expected = tools.reference_distribution(logits[row], prompt=prompts[row], output=outputs[row], **names)
        np.testing.assert_allclose(found[row], expected, atol=1e-6)


@pytest.mark.parametrize("rule", [(1.0, 0.0, 1.5), (2.0, 0.0, 0.0)])
def test_the_token_just_generated_is_penalised(tools, rule):
    """Constant logits whose best, 3, is ahead of 4: the step after 3 takes 4, with the same processors and a growing history."""
    logits = [[0.1, 0.1, 0.1, 1.9, 1.0, 0.1]] if rule[0] > 1 else [[0.0, 0.0, 0.0, 2.0, 1.0, 0.0]]
    output = []
    processors = tools.make_processors(6, penalised(tools, *rule, prompt=[0], output=output))
    for _ in range(4):
        edits = processors.bind(tools.plain_rows(1))
        output.extend(tools.run(tools.make_sampler(6), logits, tools.make_metadata(1), edits=edits))
    assert output[:2] == [3, 4]
    fresh = []
    for _ in range(4):
        edits = tools.edits(6, penalised(tools, *rule, prompt=[0], output=list(fresh)))
        fresh.extend(tools.run(tools.make_sampler(6), logits, tools.make_metadata(1), edits=edits))
    assert output == fresh


def test_counts_kept_over_steps_equal_counts_made_anew(tools):
    rng = np.random.default_rng(1)
    rules, prompts, outputs = [(1.5, 0.3, 0.1), (1.0, 0.9, 0.0)], [[1, 2], [3]], [[], [5]]
    rows = [penalised(tools, *rule, prompt=prompt, output=output) for rule, prompt, output in zip(rules, prompts, outputs, strict=True)]
    processors = tools.make_processors(40, *rows)
    order = [0, 1]
    for step in range(60):
        logits = rng.normal(0, 3, (2, 40)).astype(np.float32)
        if step == 30:  # the rows exchange their places
            processors.update(BatchUpdate(num_rows=2, moved=[RowMove(source=0, target=1, is_swap=True)]))
            order = [1, 0]
        kept = torch.from_numpy(logits.copy())
        processors.bind(tools.plain_rows(2)).before_argmax(kept)
        fresh = [penalised(tools, *rules[row], prompt=prompts[row], output=list(outputs[row])) for row in order]
        assert kept.equal(tools.edited(logits.tolist(), *fresh))
        for output in outputs:
            output.extend(rng.integers(0, 40, rng.integers(1, 4)).tolist())


def test_drafts_count_as_output_and_are_forgotten_afterwards(tools):
    output = [1]
    processors = tools.make_processors(5, penalised(tools, 1.0, 0.5, 0.25, output=output))
    rows = LogitsRows(requests=[0, 0, 0], drafts=[(), (2,), (2, 1)], has_drafts=True)
    for _ in range(2):
        logits = torch.zeros(3, 5)
        processors.bind(rows).before_argmax(logits)
        assert logits.tolist() == [[0, -0.75, 0, 0, 0], [0, -0.75, -0.75, 0, 0], [0, -1.25, -0.75, 0, 0]]


def test_ids_without_a_logit_are_left_out(tools):
    found = tools.edited([[1.0, 1.0]], penalised(tools, 2.0, prompt=[0, 7, 10**6], output=[99]))
    assert found.tolist() == [[0.5, 1.0]]

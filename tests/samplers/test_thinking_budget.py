from __future__ import annotations

import torch

from slotwise.interfaces.logits_processor import LogitsRows

START, END = [5, 6], [7, 8]
MARKERS = {"<think>": START, "</think>": END}


def force_of(tools, prompt, output, budget, drafts=()):
    """The only id that may come, or None."""
    processors = tools.make_processors(10, tools.row(list(output), prompt, thinking_token_budget=budget), encode=MARKERS.__getitem__)
    logits = torch.zeros(1, 10)
    processors.bind(LogitsRows(requests=[0], drafts=[tuple(drafts)], has_drafts=True)).before_argmax(logits)
    allowed = logits[0].isfinite().nonzero().flatten().tolist()
    return allowed[0] if len(allowed) == 1 else None


def test_the_end_marker_is_forced_token_by_token_when_the_budget_is_spent(tools):
    assert force_of(tools, [], [*START, 1], 2) is None
    assert force_of(tools, [], [*START, 1, 2], 2) == 7
    assert force_of(tools, [], [*START, 1, 2, 7], 2) == 8
    assert force_of(tools, [], [*START, 1, 2, 7, 8], 2) is None


def test_thoughts_that_the_prompt_opened_count(tools):
    assert force_of(tools, [1, *START, 1], [], 2) is None
    assert force_of(tools, [1, *START, 1], [3], 2) == 7
    assert force_of(tools, [*START, 1, *END], [3, 3, 3], 1) is None


def test_a_budget_of_zero_ends_thoughts_at_once(tools):
    assert force_of(tools, [*START], [], 0) == 7
    assert force_of(tools, [1], [], 0) is None


def test_thoughts_share_one_budget(tools):
    """One token in each of two thoughts, and the markers' own: the end's first token counts while it may be a thought."""
    assert force_of(tools, [], [*START, 1, *END, 1, *START], 2) == 7


def test_half_an_end_marker_that_was_none_is_forced_from_its_start(tools):
    assert force_of(tools, [], [*START, 7, 1], 2) == 7


def test_drafts_are_thoughts_too(tools):
    assert force_of(tools, [], [*START, 1], 3, drafts=[2]) is None
    assert force_of(tools, [], [*START, 1], 3, drafts=[2, 2]) == 7
    assert force_of(tools, [], [*START, 1], 3, drafts=[2, 2, 7]) == 8


def test_output_that_grows_gives_the_same_as_output_that_is_there(tools):
    output = []
    processors = tools.make_processors(10, tools.row(output, thinking_token_budget=3), encode=MARKERS.__getitem__)
    for token_id in [*START, 1, 2, 3, 7, 8, 1, *START]:
        output.append(token_id)
        logits = torch.zeros(1, 10)
        processors.bind(tools.plain_rows(1)).before_argmax(logits)
        allowed = logits[0].isfinite().nonzero().flatten().tolist()
        assert (allowed[0] if len(allowed) == 1 else None) == force_of(tools, [], output, 3)

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotwise_plugins.proposers.ngram import continuation


def naive(token_ids: list[int], min_match: int, max_match: int, most: int) -> list[int]:
    """By definition: longest end first, earliest occurrence first."""
    size = len(token_ids)
    for length in range(min(max_match, size - 1), min_match - 1, -1):
        for start in range(size - length):
            if token_ids[start : start + length] == token_ids[size - length :]:
                return token_ids[start + length : start + length + most]
    return []


@pytest.mark.parametrize(
    ("token_ids", "expected"),
    [
        ([1, 2, 3, 9, 1, 2], [3, 9, 1]),
        ([1, 2, 3, 1, 2, 4, 1, 2], [3, 1, 2]),
        ([5, 1, 2, 8, 7, 1, 2, 6, 5, 1, 2], [8, 7, 1]),
        ([1, 2, 3], []),
        ([7], []),
        ([4, 4, 4, 4], [4]),
    ],
)
def test_worked_examples(token_ids: list[int], expected: list[int]) -> None:
    assert continuation(np.array(token_ids), min_match=2, max_match=3, most=3) == expected


@given(st.lists(st.integers(0, 2), min_size=1, max_size=30), st.integers(1, 4), st.integers(0, 3), st.integers(1, 6))
def test_equals_the_definition(token_ids: list[int], min_match: int, more: int, most: int) -> None:
    found = continuation(np.array(token_ids), min_match=min_match, max_match=min_match + more, most=most)
    assert found == naive(token_ids, min_match, min_match + more, most)

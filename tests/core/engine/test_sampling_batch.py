"""From request parameters to sampler tensors."""

from __future__ import annotations

import random

from slotwise.engine.sampling_batch import SamplingColumns
from slotwise.interfaces.logits_processor import BatchUpdate, RowMove, RowRequest
from slotwise.interfaces.sampler import SamplingMetadata
from slotwise.sampling_params import SamplingParams


def request(**params: object) -> RowRequest:
    return RowRequest(sampling_params=SamplingParams(**params), prompt_token_ids=[1], output_token_ids=[])


def metadata_of(*rows: RowRequest) -> SamplingMetadata:
    columns = SamplingColumns(max_num_rows=8, vocab_size=10, device="cpu")
    return columns.update(BatchUpdate(num_rows=len(rows), added=list(enumerate(rows))))


def test_an_all_greedy_batch_has_no_tensor_at_all() -> None:
    metadata = metadata_of(request(temperature=0.0), request(temperature=0.0, seed=4))
    assert metadata.all_greedy
    assert not metadata.all_random
    assert metadata.temperature is metadata.top_k is metadata.top_p is metadata.min_p is metadata.num_logprobs is None
    assert metadata.seeds == {}


def test_rows_without_a_limit_get_the_neutral_value_beside_rows_with_one() -> None:
    metadata = metadata_of(request(top_k=3), request(top_p=0.5), request())
    assert metadata.top_k is not None
    assert metadata.top_p is not None
    assert metadata.top_k.tolist() == [3, 10, 10]
    assert metadata.top_p.tolist() == [1.0, 0.5, 1.0]
    assert metadata.min_p is None


def test_the_most_logprobs_of_any_row_are_computed() -> None:
    assert metadata_of(request(), request(logprobs=0)).num_logprobs == 0
    assert metadata_of(request(logprobs=3), request(logprobs=1)).num_logprobs == 3
    assert metadata_of(request(logprobs=3), request(logprobs=-1)).num_logprobs == -1


def test_columns_changed_by_difference_equal_columns_made_anew() -> None:
    """Random arrivals, departures, moves into holes and swaps."""
    chance = random.Random(0)
    columns = SamplingColumns(max_num_rows=8, vocab_size=10, device="cpu")
    rows: list[RowRequest] = []
    for _ in range(300):
        removed, added, moved = [], [], []
        if rows and chance.random() < 0.5:
            hole = chance.randrange(len(rows))
            removed.append(hole)
            last = rows.pop()
            if hole < len(rows):
                rows[hole] = last
                moved.append(RowMove(source=len(rows), target=hole))
        elif len(rows) < 8:
            rows.append(
                request(
                    temperature=chance.choice([0.0, 0.5, 1.0]),
                    top_k=chance.choice([0, 3]),
                    top_p=chance.choice([1.0, 0.5]),
                    min_p=chance.choice([0.0, 0.1]),
                    seed=chance.choice([None, 5, 9]),
                    logprobs=chance.choice([None, 0, 2]),
                )
            )
            added.append((len(rows) - 1, rows[-1]))
        if len(rows) > 1:
            first, second = chance.sample(range(len(rows)), 2)
            rows[first], rows[second] = rows[second], rows[first]
            moved.append(RowMove(source=first, target=second, is_swap=True))
        found = columns.update(BatchUpdate(num_rows=len(rows), removed=removed, added=added, moved=moved))
        expected = metadata_of(*rows)
        assert plain(found) == plain(expected)


def plain(metadata: SamplingMetadata) -> dict[str, object]:
    fields = {name: getattr(metadata, name) for name in SamplingMetadata.__slots__}
    return {name: value.tolist() if hasattr(value, "tolist") else value for name, value in fields.items()}

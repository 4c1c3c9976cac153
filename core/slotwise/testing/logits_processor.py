"""`LogitsProcessorConformance`: the cases of the `logits_processor` slot.

A processor is compared with itself: told of a batch step by step or at once, of a row alone or beside others, of tokens as drafts or as
output, it must do the same. What this file does not know: what a processor does.
"""

from __future__ import annotations

from slotwise.testing.processor_batch_cases import LogitsProcessorBatchCases
from slotwise.testing.processor_claim_cases import LogitsProcessorClaimCases


class LogitsProcessorConformance(LogitsProcessorBatchCases, LogitsProcessorClaimCases):
    """Subclass it in a test module as `class TestMyProcessor(LogitsProcessorConformance): component = "my_processor"`, and say in `params`
    which parameters it heeds if they are not among the built-in ones."""

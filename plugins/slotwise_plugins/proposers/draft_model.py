"""`draft_model`: a small model of the same vocabulary writes the drafts, one after the other.

First it computes the step's new tokens, like the model did; then each draft from the one before. Its KV lies in the requests' own blocks.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from slotwise.errors import ConfigError
from slotwise.interfaces.attention import AttentionLayer
from slotwise.interfaces.model import ProgressCallback
from slotwise.interfaces.proposer import Drafts, Proposer, ProposeRequest, ProposeRow, ProposerSetup, TokenSpan
from slotwise.interfaces.sampler import GREEDY_EPS
from slotwise_plugins.proposers.options import DRAFT_MODEL, DraftModelOptions


class DraftModelProposer(Proposer):
    """Greedy requests, and those with a seed, get the small model's most likely tokens, so that what they are given does not depend on
    anything it draws; others get tokens drawn from its distribution at their temperature."""

    capabilities = DRAFT_MODEL

    def __init__(self, setup: ProposerSetup) -> None:
        super().__init__(setup)
        assert isinstance(setup.options, DraftModelOptions)  # validated with the configuration
        self._options = setup.options
        self._loadable = setup.make_model(setup.options.model)
        self._model = self._loadable.model
        self._generator = torch.Generator(device=setup.device).manual_seed(setup.seed)
        if self._model.vocab_size != setup.model.vocab_size:
            raise ConfigError(
                f"proposer.options.model: {setup.options.model} has a vocabulary of {self._model.vocab_size} ids, the model one of "
                f"{setup.model.vocab_size}. Drafts must be ids of the model: choose a draft model of the same family.",
                key="proposer.options.model",
            )

    @property
    def attention_layers(self) -> tuple[AttentionLayer, ...]:
        return self._model.attention_layers

    def load(self, progress: ProgressCallback | None = None) -> None:
        self._loadable.load(progress)

    def propose(self, request: ProposeRequest) -> Drafts:
        rows = request.rows
        token_ids: list[list[int]] = [[] for _ in rows]
        probs: list[list[torch.Tensor]] = [[] for _ in rows]
        spans = [_new_tokens(index, row) for index, row in enumerate(rows)]
        while spans:
            logits = self._model.forward(request.passes.begin(spans)).logits.float()
            wanted = [place for place, span in enumerate(spans) if len(token_ids[span.row]) < rows[span.row].num_drafts]
            going_on = [spans[place] for place in wanted]
            drawn = self._draw(logits[wanted], [rows[span.row] for span in going_on], probs, going_on)
            for span, token_id in zip(going_on, drawn, strict=True):
                token_ids[span.row].append(token_id)
            spans = [
                TokenSpan(row=span.row, first_position=span.first_position + len(span.token_ids), token_ids=token_ids[span.row][-1:])
                for span in going_on
                if len(token_ids[span.row]) < rows[span.row].num_drafts
            ]
        return Drafts(token_ids=token_ids, probs=[torch.stack(each) if each else None for each in probs])

    def _draw(
        self, logits: torch.Tensor, rows: Sequence[ProposeRow], probs: Sequence[list[torch.Tensor]], spans: Sequence[TokenSpan]
    ) -> list[int]:
        """The next draft of each row; adds its distribution to `probs` where it was drawn from one. logits: [num_rows, vocab_size]."""
        drawn: list[int] = logits.argmax(dim=-1).tolist() if rows else []
        for place, (row, span) in enumerate(zip(rows, spans, strict=True)):
            if self._options.sample and row.temperature >= GREEDY_EPS and not row.has_seed:
                distribution = (logits[place] / row.temperature).softmax(dim=-1)
                drawn[place] = int(torch.multinomial(distribution, 1, generator=self._generator))
                probs[span.row].append(distribution)
        return drawn


def _new_tokens(index: int, row: ProposeRow) -> TokenSpan:
    return TokenSpan(row=index, first_position=row.first_new, token_ids=row.token_ids[row.first_new : row.first_new + row.num_new].tolist())

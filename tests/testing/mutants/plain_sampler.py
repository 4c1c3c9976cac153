"""A correct sampler that is easy to spoil: each step of the contract is a method."""

from __future__ import annotations

import torch

from slotwise.interfaces.sampler import GREEDY_EPS, LogprobsTensors, Sampler, SamplerCapabilities, SampleRequest, SamplerOutput


class PlainSampler(Sampler):
    """One row after the other, in float64."""

    capabilities = SamplerCapabilities(devices=("cpu",), speculative=True)
    caught_by = ""
    num_draws_needed = 1000
    """Of one distribution, to show the fault."""
    raises = None
    """The exception, where that is how the fault shows."""

    def __init__(self, setup):
        super().__init__(setup)
        self.stream = torch.Generator().manual_seed(setup.seed)

    # -- the steps ---------------------------------------------------------------------------------------------------------

    def usable(self, row):
        return bool(row.max() < torch.inf) and not bool(row.isnan().any()) and bool(row.max() > -torch.inf)

    def edit(self, request, logits):
        if request.edits is not None:
            request.edits.before_argmax(logits)
        return logits

    def greedy(self, row):
        return int(row.argmax())

    def temper(self, row, temperature):
        return (row - row.max()) / temperature

    def edit_after(self, request, scaled, index):
        """All rows must be edited at once, so each row's edit is cut out of a copy of all."""
        if request.edits is None or not request.edits.edits_after_temperature:
            return scaled
        everything = self.all_scaled.float().clone()
        request.edits.after_temperature(everything)
        return everything[index].double()

    def truncate(self, scaled, rules):
        return self.top_p(self.top_k(self.min_p(scaled, rules["min_p"]), rules["top_k"]), rules["top_p"])

    def min_p(self, scaled, ratio):
        return scaled.masked_fill(scaled.exp() < ratio * scaled.max().exp(), -torch.inf) if ratio else scaled

    def top_k(self, scaled, k):
        return scaled if not 0 < k < len(scaled) else scaled.masked_fill(scaled < scaled.topk(k).values[-1], -torch.inf)

    def top_p(self, scaled, p):
        if p >= 1:
            return scaled
        order = torch.sort(scaled, descending=True, stable=True).indices
        probs = scaled.softmax(0)[order]
        dropped = order[probs.cumsum(0) - probs >= p * (1 - 1e-9)]
        return scaled.index_fill(0, dropped, -torch.inf)

    def uniform(self, seed, position, purpose):
        if seed is None:
            return float(torch.rand((), generator=self.stream, dtype=torch.float64))
        mixed = (seed * 0x9E3779B97F4A7C15 + position * 0xBF58476D1CE4E5B9 + purpose * 0x94D049BB133111EB) % 2**63
        mixed = (mixed ^ (mixed >> 31)) * 0xD6E8FEB86659FD93 % 2**63
        return float(torch.rand((), generator=torch.Generator().manual_seed(mixed), dtype=torch.float64))

    def processed(self, kept, row, temperature):
        return kept + row.max() / temperature

    def draw(self, probs, uniform):
        return min(int(torch.searchsorted(probs.cumsum(0), uniform * float(probs.sum()), right=True)), len(probs) - 1)

    def keeps(self, p, q, uniform):
        return uniform * q < p

    def rest(self, p, q):
        left = (p - q).clamp(min=0)
        return left if left.sum() > 0 else p

    # -- the whole -----------------------------------------------------------------------------------------------------------

    def sample(self, request: SampleRequest) -> SamplerOutput:
        metadata, spec = request.metadata, request.spec_decode
        owners = list(range(metadata.num_rows)) if spec is None else spec.request_of_row.tolist()
        raw = request.logits.float()
        logits = self.edit(request, raw.clone())
        rules = [self.rules(metadata, owner) for owner in owners]
        divisors = torch.tensor([max(each["temperature"], GREEDY_EPS) for each in rules], dtype=torch.float64)
        self.all_scaled = (logits.double() - logits.double().amax(1, keepdim=True)) / divisors.unsqueeze(1)
        probs, drawn, processed = [], [], []
        for index, row in enumerate(logits.double()):
            each = rules[index]
            if not (self.usable(raw[index]) and self.usable(row)):
                probs.append(torch.zeros_like(row))
                drawn.append(-1)
                processed.append(row)
            elif each["temperature"] < GREEDY_EPS:
                probs.append(torch.nn.functional.one_hot(row.argmax(), len(row)).double())
                drawn.append(self.greedy(row))
                processed.append(row)
            else:
                tempered = self.temper(row, each["temperature"])
                edited = self.edit_after(request, tempered, index)
                kept = self.truncate(edited, each)
                probs.append(kept.softmax(0))
                drawn.append(self.draw(probs[-1], self.uniform(each["seed"], request.positions[index], 0)))
                processed.append(self.processed(kept, row, each["temperature"]))
        tokens = [[token] for token in drawn] if spec is None else self.verify(request, spec, probs, drawn, rules)
        most = max((len(of_one) for of_one in tokens), default=1)
        width = most if spec is None else 1 + max(spec.num_draft_tokens, default=0)
        output = torch.tensor([[*of_one, *[-1] * (width - len(of_one))] for of_one in tokens]).view(len(tokens), width)
        if metadata.num_logprobs is None:
            return SamplerOutput(token_ids=output)
        flat = [token for of_one, count in zip(tokens, self.rows_of(spec, tokens), strict=True) for token in (of_one + [0] * count)[:count]]
        return SamplerOutput(token_ids=output, logprobs=self.logprobs(raw, processed, torch.tensor(flat), metadata.num_logprobs))

    def rows_of(self, spec, tokens):
        return [1] * len(tokens) if spec is None else [count + 1 for count in spec.num_draft_tokens]

    def rules(self, metadata, owner):
        def of(column, off):
            return off if column is None else column[owner].item()

        return {
            "temperature": of(metadata.temperature, 0.0),
            "top_k": of(metadata.top_k, 0),
            "top_p": of(metadata.top_p, 1.0),
            "min_p": of(metadata.min_p, 0.0),
            "seed": metadata.seeds.get(owner),
        }

    def verify(self, request, spec, probs, drawn, rules):
        tokens, first, place = [], 0, 0
        for count in spec.num_draft_tokens:
            mine = []
            for offset in range(count + 1):
                row = first + offset
                if drawn[row] < 0:
                    mine = [-1]
                    break
                if offset == count:
                    mine.append(self.bonus(probs, drawn, row))
                    break
                draft = int(spec.draft_token_ids[place + offset])
                q = self.probs_of_draft(spec, place, offset)
                if self.is_certain(q, draft) or rules[row]["temperature"] < GREEDY_EPS:
                    mine.append(self.certain(drawn[row], draft, probs[row]))
                    if mine[-1] != draft:
                        break
                    continue
                if self.keeps(float(probs[row][draft]), float(q[draft]), self.uniform(rules[row]["seed"], request.positions[row], 1)):
                    mine.append(draft)
                    continue
                mine.append(self.draw(self.rest(probs[row], q), self.uniform(rules[row]["seed"], request.positions[row], 0)))
                break
            tokens.append(mine)
            first, place = first + count + 1, place + count
        return tokens

    def probs_of_draft(self, spec, place, offset):
        return None if spec.draft_probs is None else spec.draft_probs[place + offset].double()

    def is_certain(self, q, draft):
        return q is None or not bool(q[draft] > 0)

    def bonus(self, probs, drawn, row):
        return drawn[row]

    def certain(self, drawn, draft, probs):
        return drawn

    def logprobs(self, raw, processed, tokens, wanted):
        mode = self.setup.logprobs_mode
        values = raw.double() if mode.startswith("raw") else torch.stack(processed)
        values = (values.log_softmax(1) if mode.endswith("logprobs") else values).float()
        index = tokens.clamp(min=0).unsqueeze(1)
        mine = values.gather(1, index)
        top = values.topk(values.shape[1] if wanted == -1 else wanted, dim=1)
        return LogprobsTensors(
            token_ids=torch.cat((index, top.indices), 1), logprobs=torch.cat((mine, top.values), 1), ranks=self.ranks(values, mine)
        )

    def ranks(self, values, mine):
        return (values >= mine).sum(1)

"""Packed, paged, chunked forwards against the model's own eager forward, family by family."""

from __future__ import annotations

import pytest
import torch

from slotwise.errors import ModelLoadError
from slotwise.interfaces.model import ForwardBatch, ModelSetup
from slotwise_plugins.models.attention_bridge import slotwise_attention
from slotwise_plugins.models.transformers_model import TransformersModel

FAMILIES = [
    "llama", "llama3_rope", "yarn_rope", "qwen2", "qwen2_window", "qwen3", "mistral", "gemma2", "gemma3", "phi3", "gpt2", "opt", "gpt_oss",
]  # fmt: skip
SEQUENCE_LENS = [1, 19, 7, 33]


def make_sequences(vocab_size=101):
    generator = torch.Generator().manual_seed(3)
    return [torch.randint(3, vocab_size, (length,), generator=generator).tolist() for length in SEQUENCE_LENS]


def own_logits(model, sequences):
    with torch.inference_mode():
        return [model(input_ids=torch.tensor([sequence]), use_cache=False).logits[0] for sequence in sequences]


@pytest.fixture(scope="module")
def exact_and_own():
    """Family -> (logits in float64, float32 eager's own largest error against them)."""
    return {}


@pytest.mark.parametrize("chunk_lens", [[512], [5, 1, 3]], ids=["whole", "chunked"])
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_equal_the_models_own_forward(family, chunk_lens, backend_class, configs, harness, make_model, make_eager, exact_and_own):
    """Error against a float64 run stays within a small multiple of what eager float32 itself errs by."""
    sequences = make_sequences()
    if family not in exact_and_own:
        exact = own_logits(make_eager(configs[family](), "float64"), sequences)
        own = own_logits(make_eager(configs[family]()), sequences)
        exact_and_own[family] = exact, max(float((a - b).abs().max()) for a, b in zip(own, exact, strict=True))
    exact, own_error = exact_and_own[family]
    logits = harness(make_model(configs[family]()), backend_class).run(sequences, chunk_lens)
    spread = max(float(expected.std()) for expected in exact)
    error = max(float((got - expected).abs().max()) for got, expected in zip(logits, exact, strict=True))
    assert error <= 4 * own_error
    assert own_error < 1e-4 * spread


@pytest.mark.parametrize("family", ["llama", "gemma2", "mistral"])
@pytest.mark.parametrize(("block_size", "layout"), [(1, "nhd"), (16, "hnd"), (48, "nhd")])
def test_block_size_and_layout_change_nothing(family, block_size, layout, backend_class, configs, harness, make_model):
    model, sequences = make_model(configs[family]()), make_sequences()
    base = harness(model, backend_class).run(sequences, [6, 1])
    other = harness(model, backend_class, block_size=block_size, num_blocks=70, layout=layout).run(sequences, [6, 1])
    for got, expected in zip(other, base, strict=True):
        torch.testing.assert_close(got, expected, rtol=0, atol=5e-6)


def test_wrong_request_boundaries_would_be_noticed(configs, harness, make_model, make_eager, backend_class):
    """Control: one request of two glued sequences differs from two requests by far more than rounding."""
    first, second = [5, 9, 11, 3], [7, 4, 8]
    model = make_model(configs["llama"]())
    apart = harness(model, backend_class).run([first, second], [512])[1]
    glued = harness(model, backend_class).run([first + second], [512])[0][4:]
    assert (apart - glued).abs().max() > 0.1


def test_bfloat16_stays_near_its_own_eager_forward(configs, harness, make_model, make_eager, backend_class):
    sequences = make_sequences()
    exact = own_logits(make_eager(configs["llama"](), "float64"), sequences)
    own = own_logits(make_eager(configs["llama"](), "bfloat16"), sequences)
    logits = harness(make_model(configs["llama"](), "bfloat16"), backend_class).run(sequences, [4, 9])
    own_error = max(float((a - b).abs().max()) for a, b in zip(own, exact, strict=True))
    assert max(float((a - b).abs().max()) for a, b in zip(logits, exact, strict=True)) <= 3 * own_error


def test_logits_are_given_for_the_asked_rows_only(configs, harness, make_model, backend_class):
    model = make_model(configs["qwen2"]())
    engine = harness(model, backend_class)
    whole = engine.step([(0, [5, 6, 7], 0), (1, [8, 9], 0)])
    ids, positions = torch.tensor([5, 6, 7, 8, 9]), torch.tensor([0, 1, 2, 0, 1])
    with torch.inference_mode():
        for wanted in ([2, 4], [], [0]):
            indices = torch.tensor(wanted, dtype=torch.long)
            batch = ForwardBatch(input_ids=ids, positions=positions, logits_indices=indices, attention=engine)
            logits = model.forward(batch).logits
            assert logits.shape == (len(wanted), model.vocab_size)
            torch.testing.assert_close(logits, whole[indices], rtol=0, atol=1e-6)


@pytest.mark.parametrize("family", FAMILIES)
def test_computed_buffers_equal_those_of_a_model_built_in_memory(family, configs, make_model, make_eager):
    for dtype in ("float32", "bfloat16"):
        own = dict(make_eager(configs[family](), dtype).named_buffers())
        built = dict(make_model(configs[family](), dtype).model.named_buffers())
        assert own.keys() == built.keys()
        for name, buffer in own.items():
            assert built[name].dtype == buffer.dtype
            assert torch.equal(built[name], buffer), name


def test_rotary_frequencies_stay_float32_in_a_bfloat16_model(configs, make_model):
    buffers = dict(make_model(configs["llama"](), "bfloat16").model.named_buffers())
    frequencies = buffers["model.rotary_emb.inv_freq"]
    exact = 10000.0 ** (-torch.arange(0, 8, 2, dtype=torch.float64) / 8)
    assert frequencies.dtype == torch.float32
    assert ((frequencies.double() - exact).abs() * 4095).max() < 1e-2


def test_making_a_model_allocates_no_parameters(configs):
    model = TransformersModel(ModelSetup(hf_config=configs["llama"](), dtype="float32", device="cpu"))
    assert all(parameter.is_meta for parameter in model.model.parameters())
    assert model.vocab_size == 101


def test_the_callers_config_is_left_alone(configs, make_model):
    config = configs["llama"]()
    before = config.to_json_string()
    make_model(config)
    assert config.to_json_string() == before
    assert config._attn_implementation != "slotwise"


def test_a_model_that_scales_queries_by_their_place_in_the_row_is_refused() -> None:
    from transformers import Llama4TextConfig

    config = Llama4TextConfig(
        num_hidden_layers=4, hidden_size=32, num_attention_heads=2, num_key_value_heads=1, attn_temperature_tuning=True
    )
    assert not all(config.no_rope_layers)  # those layers alone are scaled
    with pytest.raises(ModelLoadError, match="attn_temperature_tuning"):
        TransformersModel(ModelSetup(hf_config=config, dtype="float32", device="cpu"))


@pytest.mark.parametrize("how", ["by position", "by keyword"])
def test_a_mask_of_the_models_own_is_never_ignored(how: str) -> None:
    tensor = torch.zeros(1, 1, 1, 1)
    positional, named = ((tensor,), {}) if how == "by position" else ((), {"attention_mask": tensor})
    with pytest.raises(ModelLoadError, match="mask of its own"):
        slotwise_attention(torch.nn.Identity(), tensor, tensor, tensor, *positional, **named)

"""The stand-in of FlashInfer's sampling functions has the real ones' parameters."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from .signatures import signature_in, signature_of

STANDIN = Path(__file__).parents[1] / "samplers" / "flashinfer_sampling_standin.py"


@pytest.fixture(scope="module")
def standin():
    spec = importlib.util.spec_from_file_location("flashinfer_sampling_standin", STANDIN)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("version", ["0.6.13", "0.7.0"])
@pytest.mark.parametrize("name", ["top_k_mask_logits", "top_p_renorm_probs"])
def test_the_arguments_given_are_those_of_the_library(fetch, standin, name, version):
    source = fetch(f"flashinfer-python=={version}") / "flashinfer" / "sampling.py"
    real, ours = signature_in(source, name), signature_of(getattr(standin, name))
    assert list(real.items())[: len(ours)] == list(ours.items())

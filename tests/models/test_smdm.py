"""Paper 2's models: converted from lit-gpt's names, with the logits of the published code (see fixtures/README.md)."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from closeness import assert_close, terms_of
from safetensors.torch import load_file, save_file
from smdm_weights import COLUMNS, KINDS, MASK, SHAPE, SINK, canvas, lit_gpt_weights

import sinkscope
from sinkscope.errors import CallError, ModelError
from sinkscope.lab.prompts import build_tokenizer
from sinkscope.models import FAMILIES
from sinkscope.models.converting import convert, convert_weights, fold

SMDM = FAMILIES["smdm"]

PUBLISHED = np.load(Path(__file__).parent / "fixtures" / "smdm_logits.npz")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    build_tokenizer().save_pretrained(folder)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(
        json.dumps({key: value for key, value in config.items() if key != "mask_token"})
    )
    return folder


@pytest.fixture(scope="module", params=KINDS)
def converted(request, tmp_path_factory, tokenizer):
    home = tmp_path_factory.mktemp("smdm")
    torch.save(lit_gpt_weights(request.param), home / "model.pth")
    return request.param, convert(home / "model.pth", home / "model", tokenizer=tokenizer, heads=SHAPE.n_head)


def assert_published(kind, network):
    """The published code's logits in fp32, and their log-sum-exp, which is no further off than the furthest of them."""
    logits = network(canvas(), use_cache=False).logits
    assert logits.shape == (2, 19, 32000)
    terms = terms_of(network, 20)
    assert_close(logits[:, :, COLUMNS], PUBLISHED[kind], terms=terms)
    assert_close(logits.double().logsumexp(-1), PUBLISHED[kind + "_logsumexp"], terms=terms, dtype=torch.float32)


@torch.no_grad()
def test_logits_are_those_of_the_published_code(converted):
    kind, folder = converted
    model = sinkscope.load(str(folder))
    assert_published(kind, model.network)
    assert model.family is SMDM and model.card.mask_id == MASK and model.card.vocabulary == 32001
    assert model.card.sink_token == (None if kind == "none" else kind)
    if kind == "token":
        assert model.network.config.sink_token["token_id"] == SINK


@torch.no_grad()
def test_folded_too(converted, tmp_path):
    kind, folder = converted
    if kind == "token":
        assert_published(kind, sinkscope.load(fold(str(folder), tmp_path / "folded")).network)


@pytest.mark.parametrize("form", ["packed", "under the key model", "safetensors"])
def test_other_forms_of_the_same_weights(form, tmp_path, tokenizer):
    weights = lit_gpt_weights("token")
    file = tmp_path / ("model.safetensors" if form == "safetensors" else "model.pth")
    if form == "packed":
        for layer in range(SHAPE.n_layer):
            name = f"transformer.h.{layer}.mlp.swiglu.w"
            weights[f"{name}12.weight"] = torch.cat([weights.pop(f"{name}1.weight"), weights.pop(f"{name}2.weight")])
    if form == "safetensors":
        save_file(weights, file)
    else:
        torch.save({"model": weights} if form == "under the key model" else weights, file)
    out = convert(file, tmp_path / "model", tokenizer=tokenizer, heads=SHAPE.n_head)
    _, expected = convert_weights(lit_gpt_weights("token"), "here", SHAPE.n_head)
    found = load_file(out / "model.safetensors")
    assert found.keys() == expected.keys() and all(
        torch.equal(found[name], tensor) for name, tensor in expected.items()
    )


def changed(change):
    weights = lit_gpt_weights("none")
    change(weights)
    return weights


def test_a_tokenizer_of_another_model_is_refused_before_anything_is_written(tmp_path):
    torch.save(lit_gpt_weights("none"), tmp_path / "plain.pth")
    build_tokenizer().save_pretrained(tmp_path / "masked")
    message = f"plain.pth does not go with --tokenizer {tmp_path / 'masked'}: .* expected token 32000, .* token 2"
    with pytest.raises(ModelError, match=message):
        convert(tmp_path / "plain.pth", tmp_path / "model", tokenizer=tmp_path / "masked", heads=SHAPE.n_head)
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (lambda: changed(lambda w: w.pop("transformer.ln_f.weight")), r"1 missing: model\.norm\.weight \(24,\)"),
        (lambda: changed(lambda w: w.pop("transformer.h.1.attn.attn.weight")), r"3 missing: model\.layers\.1\.self"),
        (
            lambda: changed(lambda w: w.update({"transformer.h.0.attn.bias": torch.ones(3)})),
            r"1 unused: transformer\.h\.0\.attn\.bias \(3,\)",
        ),
        (lambda: changed(lambda w: w.update({"transformer.wte.weight": torch.ones(32005, 24)})), r"32000, found 5"),
        (
            lambda: changed(lambda w: w.update({"transformer.h.0.attn.attn.weight": torch.ones(41, 24)})),
            r"expected the rows of 6 heads of 4 .* found 41",
        ),
    ],
)
def test_a_file_that_is_something_else_is_refused(content, message, tmp_path, tokenizer):
    torch.save(content(), tmp_path / "model.pth")
    with pytest.raises(ModelError, match=message):
        convert(tmp_path / "model.pth", tmp_path / "model", tokenizer=tokenizer, heads=SHAPE.n_head)
    assert not (tmp_path / "model").exists()


def test_a_width_that_was_not_published_needs_its_heads(tmp_path, tokenizer):
    torch.save(lit_gpt_weights("none"), tmp_path / "model.pth")
    with pytest.raises(CallError, match=r"its width 24 is none of the published ones \(\[256, .*\); pass --heads"):
        convert(tmp_path / "model.pth", tmp_path / "model", tokenizer=tokenizer)
    with pytest.raises(CallError, match=r"--tokenizer .*: expected a folder with tokenizer\.json, found none"):
        convert(tmp_path / "model.pth", tmp_path / "model", tokenizer=tmp_path, heads=6)


@pytest.mark.parametrize(("width", "layers", "heads"), [(640, 10, 10), (640, 16, 8), (1280, 18, 10)])
def test_heads_of_the_published_shapes(width, layers, heads):
    weights = {
        "lm_head.weight": torch.zeros(5, width),
        "transformer.wte.weight": torch.zeros(6, width),
        "transformer.ln_f.weight": torch.ones(width),
    }
    for layer in range(layers):
        block = f"transformer.h.{layer}."
        shapes = {"norm_1": (width,), "norm_2": (width,), "attn.attn": (3 * width, width), "attn.proj": (width, width)}
        shapes |= {"mlp.swiglu.w1": (7, width), "mlp.swiglu.w2": (7, width), "mlp.swiglu.w3": (width, 7)}
        weights |= {f"{block}{name}.weight": torch.zeros(1).expand(shape) for name, shape in shapes.items()}
    config, _ = convert_weights(weights, "here")
    assert config["num_attention_heads"] == config["num_key_value_heads"] == heads


def test_a_converted_model_writes_and_never_the_mask(converted, tmp_path):
    _, folder = converted
    model = sinkscope.load(str(folder))
    with sinkscope.recording(model, out=tmp_path / "run"):
        written = sinkscope.generate(model, [7, 8, 9, 10], length=8, steps=4, block=8)
    assert not bool((written.tokens >= MASK).any())
    trace = sinkscope.open_trace(tmp_path / "run")
    assert trace.column_sums.shape == (4, 3, 6, 12)
    assert trace.token_text(MASK) == f"<{MASK}>" and trace.token_text(7) == model.decode([7])

"""Folders of models with a sink: saved, loaded, refused, written with and recorded."""

import json
from dataclasses import asdict

import pytest
import torch
from closeness import assert_close, terms_of
from damage import configure
from dense_sink import save, with_sink
from other_kernels import other_kernels

import sinkscope
from sinkscope.decoding.checking import check_model
from sinkscope.errors import ModelError
from sinkscope.models import SinkToken
from sinkscope.models.sink_token import VARIANTS

NAMES = [name for name in VARIANTS if name != "none"]
CAUSAL = [name for name in NAMES if name != "token-end"]
TOKENS = torch.randint(4, 150, (2, 17), generator=torch.Generator().manual_seed(1))
WRITTEN = {"length": 8, "steps": 4, "block": 4}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """One folder of each variant, bidirectional; ``causal`` ones beside."""
    home = tmp_path_factory.mktemp("sinks")
    made = {name: save(with_sink(VARIANTS[name]), home / name) for name in NAMES}
    return made | {
        f"causal {name}": save(with_sink(VARIANTS[name], causal=True, kv_heads=1), home / f"causal {name}")
        for name in CAUSAL
    }


@torch.no_grad()
@pytest.mark.parametrize("name", NAMES)
def test_what_is_saved_is_loaded(folders, name):
    """Its weights to the bit; they lie elsewhere in memory, and products of few rows add up in an order that depends on
    where.
    """
    model, network = sinkscope.load(str(folders[name])), with_sink(VARIANTS[name])
    loaded, made = dict(model.network.named_parameters()), dict(network.named_parameters())
    assert loaded.keys() == made.keys() and all(torch.equal(loaded[name], made[name]) for name in made)
    assert_close(
        model.network(TOKENS, use_cache=False).logits,
        network(TOKENS, use_cache=False).logits,
        terms=terms_of(network, 18),
    )
    stored = json.loads((folders[name] / "config.json").read_text())
    assert stored["model_type"] == "sink_llama" and stored["sink_token"] == asdict(VARIANTS[name])
    assert (
        model.card.sink_token == name and model.family.name == "llada" and model.card.vocabulary == len(model.tokenizer)
    )


def test_transformers_alone_refuses_the_folder(folders):
    import transformers

    with pytest.raises(ValueError, match="sink_llama"):
        transformers.AutoModelForCausalLM.from_pretrained(folders["token"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sink_token": {"kind": "vector"}}, r"a variant that this version knows \(.*kind: expected .* found 'vector'"),
        ({"model_type": "llama"}, r"begins with 'sink_' together, found model_type 'llama' with sink_token"),
        ({"sink_token": None}, r"begins with 'sink_' together, found model_type 'sink_llama' without sink_token"),
        ({"sink_token": asdict(VARIANTS["token-2"])}, r"model\.sink_token\.embedding \(1, 40\) instead of \(2, 40\)"),
        ({"sink_token": asdict(VARIANTS["logit"])}, r"1 missing: model\.sink_token\.logits \(3, 5\); 1 unused: "),
        ({"sink_token": asdict(SinkToken(token_id=9))}, r"'token' has token_id 9, but the tokenizer of .* there; "),
    ],
)
def test_a_folder_that_does_not_fit_is_refused(tmp_path, changes, message):
    folder = save(with_sink(), tmp_path / "model")
    configure(folder, **changes)
    with pytest.raises(ModelError, match=message):
        sinkscope.load(str(folder))


@pytest.mark.parametrize("name", ["token-end", "logit", "gate", "causal token"])
def test_sinkscope_check_proves_it(folders, name):
    failed = [one for one in check_model(sinkscope.load(str(folders[name]))) if not one.passed]
    assert not failed


@pytest.mark.parametrize("name", ["token-2", "token-end", "logit", "gate"])
def test_a_batch_with_padding_and_guidance_is_written_as_its_rows_alone(folders, name, question, short):
    model = sinkscope.load(str(folders[name]))
    both = sinkscope.generate(model, [question, short], **WRITTEN, guidance=0.7)
    for prompt, together in zip((question, short), both, strict=True):
        with other_kernels(model.network):
            alone = sinkscope.generate(model, prompt, **WRITTEN, guidance=0.7)
        assert torch.equal(together.tokens, alone.tokens)


@pytest.mark.parametrize("name", ["token-2", "logit", "gate"])
def test_a_causal_batch_is_written_as_its_rows_alone_and_without_a_cache(folders, name, question, short):
    model = sinkscope.load(str(folders[f"causal {name}"]))
    both = sinkscope.generate(model, [question, short], length=6)
    for prompt, together in zip((question, short), both, strict=True):
        tokens = torch.tensor([model.encode(prompt)])
        for _ in range(together.steps):
            with torch.no_grad(), other_kernels(model.network):
                following = model.network(tokens, use_cache=False).logits[:, -1].argmax(-1)
            tokens = torch.cat([tokens, following[:, None]], dim=1)
        assert torch.equal(together.tokens, tokens[0])


@pytest.mark.parametrize("name", ["token-4", "token-end", "logit"])
def test_a_trace_has_the_users_positions_and_the_sinks_apart(folders, name, tmp_path, question, short):
    model = sinkscope.load(str(folders[name]))
    plain = sinkscope.generate(model, [question, short], **WRITTEN, guidance=0.7)
    with sinkscope.recording(model, out=tmp_path / "run"):
        recorded = sinkscope.generate(model, [question, short], **WRITTEN, guidance=0.7)
    for row, (mine, other) in enumerate(zip(recorded, plain, strict=True)):
        assert torch.equal(mine.tokens, other.tokens)
        trace = sinkscope.open_trace(tmp_path / "run" / f"{row:06d}")
        length = len(mine.tokens)
        sums, sinks = torch.tensor(trace.column_sums[:]), torch.tensor(trace.sink_token_columns[:])
        assert sums.shape == (4, 3, 5, length) and sinks.shape == (4, 3, 5, VARIANTS[name].count)
        assert_close(sums.sum(-1) + sinks.sum(-1), float(length), terms=3 * length)
        assert trace.tokens.shape == (4, length) and trace.value_norms.shape == (4, 3, 5, length)
        assert trace.manifest["model"]["sink_token"] == name
        assert trace.manifest["axes"]["sink_token_columns"] == ["step", "layer", "head", "sink"]

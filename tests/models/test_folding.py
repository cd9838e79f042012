import json

import pytest
import torch
from closeness import assert_close, terms_of
from dense_sink import body, save, with_sink
from safetensors.torch import load_file, save_file

import sinkscope
from sinkscope.attention import Hider, Watcher, subscribed
from sinkscope.errors import CallError
from sinkscope.models import SinkToken, add_sink_token
from sinkscope.models.converting import fold

VARIANTS = [
    SinkToken(),
    SinkToken(count=4),
    SinkToken(position="end", count=2),
    SinkToken(zero_value=True),
    SinkToken(position="end", zero_value=True),
]
TOKENS = torch.randint(4, 150, (3, 21), generator=torch.Generator().manual_seed(1))
REAL = torch.ones_like(TOKENS)
REAL[1, :6] = 0
POSITIONS = (REAL.cumsum(-1) - 1).clamp(min=0)
TERMS = terms_of(with_sink(), 21 + 4)


@pytest.fixture(scope="module", params=range(len(VARIANTS)), ids=lambda number: f"{VARIANTS[number].name}")
def pair(request, tmp_path_factory):
    """A model stored in bfloat16, as itself and folded; both in fp32."""
    home, variant = tmp_path_factory.mktemp("folding"), VARIANTS[request.param]
    save(with_sink(variant, kv_heads=1).to(torch.bfloat16), home / "model")
    fold(str(home / "model"), home / "folded")
    return variant, *(sinkscope.load(str(home / name), dtype="float32") for name in ("model", "folded"))


class _Everything(Watcher):
    def __init__(self):
        self.seen = []

    def watch(self, call, columns):
        self.seen += [columns.sums, columns.prefix, columns.diagonal]


class _Hide(Hider):
    def hide(self, call):
        return torch.arange(call.key.shape[2])[None, None] == 9


def logits(model):
    with torch.no_grad():
        return model.network(TOKENS, attention_mask=REAL, position_ids=POSITIONS, use_cache=False).logits


def test_folded_and_unfolded_agree_also_recorded_and_hidden(pair):
    _, model, folded = pair
    found = []
    for one in (model, folded):
        watcher = _Everything()
        with subscribed(one.network, watcher), subscribed(one.network, _Hide()):
            found.append([logits(one), *watcher.seen])
    found[0].append(logits(model))
    found[1].append(logits(folded))
    for mine, theirs in zip(*found, strict=True):
        assert_close(theirs, mine, terms=TERMS)
    assert (found[0][0] - logits(model)).abs().max() > 1e-2


def test_a_folded_model_computes_no_row(pair):
    variant, _, folded = pair
    rows = []
    hooks = [
        module.register_forward_hook(lambda m, i, out: rows.append(out.numel() // out.shape[-1]))
        for module in folded.network.modules()
        if isinstance(module, torch.nn.Linear)
    ]
    logits(folded)
    for hook in hooks:
        hook.remove()
    assert set(rows) == {TOKENS.numel()}
    stored = folded.network.model.sink_token
    assert {name for name, _ in stored.named_parameters()} == ({"keys"} if variant.zero_value else {"keys", "values"})
    file = load_file(f"{folded.card.name}/model.safetensors")
    assert {name for name, one in file.items() if one.dtype == torch.float32} == {one for one in file if "sink" in one}
    assert folded.card.sink_token.startswith(variant.name.split(" ")[0])


def test_shards_are_folded_where_the_embedding_was(tmp_path):
    folder = save(with_sink(), tmp_path / "model")
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    parts = {"model-00001-of-00002.safetensors": {}, "model-00002-of-00002.safetensors": {}}
    for number, name in enumerate(sorted(weights)):
        parts[sorted(parts)[number % 2]][name] = weights[name]
    for file, tensors in parts.items():
        save_file(tensors, folder / file, metadata={"format": "pt"})
    index = {
        "metadata": {"total_size": sum(tensor.nbytes for tensor in weights.values())},
        "weight_map": {name: file for file, tensors in parts.items() for name in tensors},
    }
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    out = fold(str(folder), tmp_path / "folded")
    written = json.loads((out / "model.safetensors.index.json").read_text())
    sizes = 0
    for file in parts:
        stored = load_file(out / file)
        assert {name for name, home in written["weight_map"].items() if home == file} == set(stored)
        sizes += sum(tensor.nbytes for tensor in stored.values())
    assert written["metadata"]["total_size"] == sizes
    assert_close(logits(sinkscope.load(str(out))), logits(sinkscope.load(str(folder))), terms=TERMS)


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (lambda: body(), "expected a trained sink token that is not folded yet, found none"),
        (lambda: with_sink(SinkToken(kind="logit")), "found 'logit'"),
        (lambda: add_sink_token(body(), SinkToken(count=2)), "found 'token-2' as it was drawn"),
    ],
)
def test_what_cannot_be_folded_is_refused(tmp_path, network, message):
    folder = save(network(), tmp_path / "model")
    with pytest.raises(CallError, match=message):
        fold(str(folder), tmp_path / "folded")
    assert not (tmp_path / "folded").exists()

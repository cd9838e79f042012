"""Networks for which transformers has no sdpa attention: their modules do not say that they are causal, so the mask
must.
"""

import pytest
import torch
import transformers
from closeness import assert_close, terms_of

import sinkscope

IDS = torch.randint(3, 60, (2, 9), generator=torch.Generator().manual_seed(0))


@pytest.fixture
def network():
    torch.manual_seed(0)
    sizes = {
        f"{part}_{name}": size
        for part in ("encoder", "decoder")
        for name, size in (("layers", 2), ("attention_heads", 4), ("ffn_dim", 48))
    }
    config = transformers.BigBirdPegasusConfig(
        vocab_size=60, d_model=32, max_position_embeddings=64, init_std=0.3, **sizes
    )
    network = transformers.BigBirdPegasusForCausalLM(config).eval()
    assert not network._supports_sdpa and not network.model.decoder.layers[0].self_attn.is_causal
    return network


@torch.no_grad()
@pytest.mark.parametrize("padding", [0, 3])
def test_columns_are_those_of_the_causal_network(network, tmp_path, padding):
    mask = torch.ones_like(IDS)
    mask[0, :padding] = 0
    options = {"attention_mask": mask} if padding else {}
    dense = network(IDS, output_attentions=True, use_cache=False, **options)
    with sinkscope.recording(network, out=tmp_path / "run"):
        logits = network(IDS, use_cache=False, **options).logits
    assert_close(logits[:, padding:], dense.logits[:, padding:], terms=terms_of(network, 9))
    for row, trace in enumerate(sinkscope.open_traces(tmp_path / "run")):
        real = mask[row].bool()
        for layer, attention in enumerate(dense.attentions):
            assert_close(
                trace.column_sums[0, layer], attention[row][:, real][:, :, real].sum(1), terms=terms_of(network, 9)
            )

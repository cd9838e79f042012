"""Decoders of transformers, built small from their names: logits untouched and columns as in eager maps."""

import inspect

import pytest
import torch
import transformers
from closeness import assert_close, terms_of

import sinkscope
from sinkscope.errors import AttentionError

pytestmark = pytest.mark.slow

OF_SIZE = {
    64: "vocab_size max_position_embeddings",
    48: "intermediate_size moe_intermediate_size decoder_ffn_dim encoder_ffn_dim ffn_dim",
    32: "hidden_size d_model word_embed_proj_dim",
    8: "head_dim",
    5: "sliding_window",
    4: "num_attention_heads decoder_attention_heads encoder_attention_heads attention_chunk_size "
    "num_experts num_local_experts n_routed_experts",
    2: "num_hidden_layers decoder_layers encoder_layers num_key_value_heads num_experts_per_tok eos_token_id",
    1: "bos_token_id decoder_start_token_id",
    0.3: "initializer_range init_std",
    0: "pad_token_id",
}
SMALL = {name: size for size, names in OF_SIZE.items() for name in names.split()}
RECORDED = """
    apertus arcee biogpt bitnet cohere cohere2 ctrl cwm doge ernie4_5 exaone4 flex_olmo gemma gemma3_text glm glm4
    gpt_bigcode gpt_neox granite granitemoe helium hunyuan_v1_dense jais2 llama llama4_text ministral mistral mixtral
    modernbert-decoder nanochat olmo olmo2 olmo3 olmoe opt stablelm persimmon phi phi3 phimoe qwen2 qwen3 qwen3_moe
    seed_oss smollm3 starcoder2 bigbird_pegasus
""".split()
REFUSED = ("bloom", "diffllama", "gemma2", "gpt_oss", "mpt", "mamba", "xglm")
IDS = torch.randint(3, 60, (2, 9), generator=torch.Generator().manual_seed(0))
MASK = torch.ones_like(IDS)
MASK[1, :3] = 0


def build(name):
    """A small random network of this name, whose heads differ; skipped where this transformers has none."""
    try:
        kind = type(transformers.AutoConfig.for_model(name))
    except ValueError:
        pytest.skip(f"transformers {transformers.__version__} has no {name}")
    known = inspect.signature(kind).parameters
    names = {*known, *getattr(kind, "attribute_map", {})}
    torch.manual_seed(0)
    network = transformers.AutoModelForCausalLM.from_config(
        kind(**{key: value for key, value in SMALL.items() if key in names})
    )
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=0.3)
    return network.eval()


@torch.no_grad()
@pytest.mark.parametrize("name", RECORDED)
def test_columns_are_those_of_eager_maps(name, tmp_path):
    network = build(name)
    network.set_attn_implementation("eager")
    given = {"attention_mask": MASK, "position_ids": (MASK.cumsum(-1) - 1).clamp(min=0)}
    given = {key: value for key, value in given.items() if key in inspect.signature(network.forward).parameters}
    dense = network(IDS, output_attentions=True, use_cache=False, **given)
    with sinkscope.recording(network, out=tmp_path / "run"):
        logits = network(IDS, use_cache=False, **given).logits
    terms = terms_of(network, 9) * 4
    for row, trace in enumerate(sinkscope.open_traces(tmp_path / "run")):
        real = MASK[row].bool()
        assert_close(logits[row, real], dense.logits[row, real], terms=terms)
        for layer, attention in enumerate(dense.attentions):
            found = trace.column_sums[0, layer][:, : real.sum()]
            assert_close(found, attention[row][:, real][:, :, real].sum(1), terms=terms)
    with sinkscope.recording(network, out=tmp_path / "written"):
        written = network.generate(IDS[:1], max_new_tokens=3, min_new_tokens=3, do_sample=False)
    dense = network(written[:, :-1], output_attentions=True, use_cache=False)
    trace = sinkscope.open_trace(tmp_path / "written")
    for layer, attention in enumerate(dense.attentions):
        assert_close(trace.column_sums[2, layer], attention[0].sum(1), terms=terms)


@torch.no_grad()
@pytest.mark.parametrize("name", REFUSED)
def test_what_would_be_wrong_is_refused(name, tmp_path):
    network = build(name)
    with pytest.raises(AttentionError), sinkscope.recording(network, out=tmp_path / "run"):
        network(IDS)
    assert not (tmp_path / "run").exists()

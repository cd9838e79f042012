"""Fast-dLLM v2: a Qwen2.5 that was trained on to write block by block, each block by diffusion; its logits predict the
next token.
"""

from dataclasses import replace

from sinkscope.models.family import Family, PublishedShape
from sinkscope.models.layouts import STOCK, Fixed

QWEN2 = STOCK["qwen2"]

FAMILY = Family(
    "fast_dllm_v2",
    causal=False,
    sampler="fast_dllm_v2",
    model_types=("Fast_dLLM_Qwen",),
    source="Efficient-Large-Model/Fast_dLLM_v2_7B, modeling.py, as Satgoy152/DualDiffusion carries it",
    architectures=("Fast_dLLM_QwenForCausalLM",),
    network="sinkscope.models.block_causal:BlockCausalQwen2",
    tokenizer_classes=("Qwen2Tokenizer", "Qwen2TokenizerFast"),
    layout=replace(
        QWEN2,
        sizes={**QWEN2.sizes, "bd_size": "block_size"},
        numbers={**QWEN2.numbers, "rope_theta": "rope_theta"},
        passed=frozenset(),
        fixed={
            **QWEN2.fixed,
            "hidden_act": Fixed(("silu",), "silu"),
            "rope_scaling": Fixed((None,), None),
        },
        absent={"mask_token_id": 151665},  # an argument of the published ``generate``
        ignored=QWEN2.ignored | {"conplemenrary_mask"},  # of training
    ),
    shift=True,
    mask_text="|<MASK>|",
    shapes=(PublishedShape(("Efficient-Large-Model/Fast_dLLM_v2_7B",), 7_615_616_512, 28, 3584, vocabulary=152064),),
)

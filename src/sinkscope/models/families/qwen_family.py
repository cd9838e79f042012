"""Qwens that were trained on to diffuse: Dream, Dream-Coder, DiffuCoder and Open-dLLM, whose logits predict the next
token; SDAR and Fast-dLLM v2, which write block by block, each block by diffusion behind the finished ones.
"""

from dataclasses import replace

from sinkscope.models.family import NUMBERS, SIZES, STOCK, TIED, UNROTATED, Family, Fixed, PublishedShape

QWEN2, QWEN3 = STOCK["qwen2"], STOCK["qwen3"]
CHATML = (
    "{% if messages[0]['role'] != 'system' %}<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
BYTE_PAIRS = ("Qwen2Tokenizer", "Qwen2TokenizerFast")

DREAM = Family(
    "dream",
    causal=False,
    sampler="dream",
    model_types=("Dream",),
    source="DreamLM/Dream, generation_utils.py",
    layout=replace(
        QWEN2,
        sizes=SIZES,
        optional=frozenset(),
        numbers=NUMBERS,
        passed=frozenset(),
        fixed={
            **QWEN2.fixed,
            **UNROTATED,
            "attention_bias": Fixed((True,), True),  # its code has biases whatever the config says
            "use_mrope": Fixed((False,), False),
        },
    ),
    architectures=("DreamModel",),
    tokenizer_classes=("DreamTokenizer", *BYTE_PAIRS),
    shift=True,
    mask_text="<|mask|>",
    chat_template=CHATML,
    chat_tokens=("<|im_start|>", "<|im_end|>"),
    shapes=(PublishedShape("Dream-org/Dream-v0-Base-7B", 7_615_616_512, 28, 3584, vocabulary=152064),),
)
SDAR = Family(
    "sdar",
    causal=False,
    sampler="sdar",
    model_types=("sdar",),
    source="JetAstra/SDAR, generate.py",
    architectures=("SDARForCausalLM",),
    network="sinkscope.models.networks:BlockCausalQwen3",
    tokenizer_classes=BYTE_PAIRS,
    layout=replace(
        QWEN3,
        numbers=NUMBERS,
        passed=frozenset(),
        fixed={**QWEN3.fixed, **UNROTATED, "attention_bias": Fixed((False,), False)},
        optional=frozenset(),
        flags=TIED,
        # The hub's config.json names neither. All published chat models have blocks of 4; the mask is checked against
        # the tokenizer.
        absent={"block_size": 4, "mask_token_id": 151669},
        # Of training, and of the way the weights were converted.
        ignored=QWEN3.ignored
        | {"debug", "ep_size", "fuse_cross_entropy", "micro_forward", "skip_checkpoint", "use_deepep"},
    ),
    mask_text="<|MASK|>",
    end_of_turn=151645,
    shapes=(
        PublishedShape("JetLM/SDAR-4B-Chat", 4_411_424_256, 36, 2560, vocabulary=151936),
        PublishedShape("JetLM/SDAR-8B-Chat", 8_190_735_360, 36, 4096, vocabulary=151936),
    ),
)
OPEN_DLLM = Family(
    "open_dllm",
    causal=False,
    sampler="open_dllm",
    model_types=(),  # known by its code's name, or by the family's in its config.json
    source="pengzhangzhi/Open-dLLM, veomni/models/transformers/qwen2",
    shift=True,
    mask_text="<M>",
)
FAST_DLLM_V2 = Family(
    "fast_dllm_v2",
    causal=False,
    sampler="fast_dllm_v2",
    model_types=("Fast_dLLM_Qwen",),
    source="Efficient-Large-Model/Fast_dLLM_v2_7B, modeling.py, as Satgoy152/DualDiffusion carries it",
    architectures=("Fast_dLLM_QwenForCausalLM",),
    network="sinkscope.models.networks:BlockCausalQwen2",
    tokenizer_classes=BYTE_PAIRS,
    layout=replace(
        QWEN2,
        sizes={**QWEN2.sizes, "bd_size": "block_size"},
        numbers=NUMBERS,
        passed=frozenset(),
        fixed={**QWEN2.fixed, **UNROTATED},
        absent={"mask_token_id": 151665},  # an argument of the published ``generate``
        ignored=QWEN2.ignored | {"conplemenrary_mask"},  # of training
    ),
    shift=True,
    mask_text="|<MASK>|",
    shapes=(PublishedShape("Efficient-Large-Model/Fast_dLLM_v2_7B", 7_615_616_512, 28, 3584, vocabulary=152064),),
)

"""Paper 2's own models (SMDM, "One Token Is Enough"), in the folders that `sinkscope convert` writes from their
checkpoints.
"""

from sinkscope.models.family import Family

FAMILY = Family(
    "smdm",
    causal=False,
    sampler="llada",
    model_types=(),  # known by the family's name in its config.json
    source="skywalker0523/OneTokenIsEnough, lit_gpt/diffmodel_extratoken.py",
    architectures=("MasklessHeadLlama",),
    network="sinkscope.models.llama_variants:MasklessHeadLlama",
)

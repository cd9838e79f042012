"""TransformerLens at diffusion steps: the layer from which each written token is the network's first choice."""

import torch
from transformer_lens.model_bridge import TransformerBridge

import sinkscope

model = sinkscope.load("lab-diffusion")
network = model.network
bridge = TransformerBridge.boot_transformers("llama", hf_model=network, tokenizer=model.tokenizer)
for block in bridge.blocks:
    vars(block.attn)["is_causal"] = (
        False  # 4.3.0 takes every Llama for a causal one; an assignment would go to the wrapped module
    )
residual, rows = {}, []


def keep(stream, hook):
    """A hook of TransformerLens: the residual stream [batch, position, hidden] behind one block, of the newest call."""
    residual[hook.name] = stream


def on_step(step):
    """Called when a step has committed: one call of the network is one step, so what the hooks kept belongs to it."""
    at = step.written[0] >= 0
    stack = torch.stack([residual[name][0, at] for name in names])  # [layer, written token, hidden]
    first = network.lm_head(network.model.norm(stack)).argmax(-1) == step.written[0, at]
    layers = first.flip(0).cumprod(0).sum(0)  # how many of the last layers agree with what was written
    rows.extend(
        zip([step.number] * int(at.sum()), step.written[0, at].tolist(), (len(names) - layers).tolist(), strict=True)
    )


names = [f"blocks.{layer}.hook_out" for layer in range(len(bridge.blocks))]
prompt = "Q: Tom has 7 apples and buys 5 more. How many apples does Tom have now?\nA:"
with torch.no_grad(), bridge.hooks(fwd_hooks=[(name, keep) for name in names]):
    answer = sinkscope.generate(model, prompt, length=16, steps=16, block=16, on_step=on_step)
print("step  wrote         from layer")
for number, token, layer in rows:
    print(f"{number:4}  {model.tokenizer.convert_ids_to_tokens(token)!r:12}  {layer:10}")

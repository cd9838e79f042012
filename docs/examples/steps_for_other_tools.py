"""Norms of the residual stream by diffusion step, as another tool sees them, beside what each step wrote."""

import torch

import sinkscope

model = sinkscope.load("lab-diffusion")
seen, rows = {}, []


def see(module, arguments, output):
    """Keeps the output of one layer in the newest call, as a hook of TransformerLens or nnsight would."""
    seen["residual"] = output[0] if isinstance(output, tuple) else output


def on_step(step):
    """Keep what the hook saw: one call of the network is one step, and it has committed."""
    written = (step.written[0] >= 0).nonzero().flatten()
    norms = seen["residual"][0].norm(dim=-1)
    tokens = " ".join(model.tokenizer.convert_ids_to_tokens(step.written[0][written].tolist()))
    rows.append((step.number, tokens, float(norms[written].mean()), float(norms.mean())))


handle = model.network.model.layers[3].register_forward_hook(see)
prompt = "Q: Tom has 7 apples and buys 5 more. How many apples does Tom have now?\nA:"
with torch.no_grad():
    answer = sinkscope.generate(model, prompt, length=16, steps=16, block=16, on_step=on_step)
handle.remove()
print("step  wrote         norm where it wrote  mean norm")
for number, text, there, everywhere in rows:
    print(f"{number:4}  {text!r:12}  {there:19.1f}  {everywhere:9.1f}")

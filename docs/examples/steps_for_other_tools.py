"""What another tool sees in a forward call, by diffusion step: norms of the residual stream, beside what each step wrote."""

import torch

import sinkscope

model = sinkscope.load("lab-diffusion")
seen, rows = {}, []


def see(module, arguments, output):
    """What a hook of TransformerLens or a saved value of nnsight would give: the output of one layer, of the newest call."""
    seen["residual"] = output[0] if isinstance(output, tuple) else output


def on_step(step):
    """Called when a step has committed: what the hook saw belongs to this step, because one call of the network is one step."""
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

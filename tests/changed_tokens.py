"""What a sampler changed in a canvas, call by call, as the fixtures of published loops hold it."""

import torch

MASK = 60


def changes_along(prompt, canvases):
    """Return, canvas by canvas, the positions that changed and the tokens they changed to; masks come first."""
    before, found = torch.tensor([*prompt, *[MASK] * len(canvases[0])])[: len(canvases[0])], []
    for after in canvases:
        changed = (after != before).nonzero().flatten()
        found.append(torch.stack([changed, after[changed]], dim=1).flatten().tolist())
        before = after
    return found

"""Whether draws follow a distribution."""

import scipy.stats
import torch


def p_value(drawn, shares):
    """p-value of drawn classes, int64 [draw], against shares [class]; classes expected under five times are one."""
    expected = shares.double() / shares.double().sum() * len(drawn)
    counts, often = torch.bincount(drawn, minlength=len(shares)).double(), expected >= 5
    assert int(often.sum()) >= 4, "too sharp a distribution to test a sampler on"
    observed, wanted = (torch.cat([one[often], one[~often].sum()[None]]).tolist() for one in (counts, expected))
    if wanted[-1] == 0:
        assert observed[-1] == 0
        observed, wanted = observed[:-1], wanted[:-1]
    return scipy.stats.chisquare(observed, wanted).pvalue

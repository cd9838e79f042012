"""Measures claims of the papers, one after the other, and writes the page.

Command   python experiments/claims.py [NAME…] [--prompts 48] [--shots 0 1 2 5]; all of them without a name
Cost      with its nulls about a quarter of an hour of one core for 12 prompts and --shots 0 5, eight times that in
          full, and two trainings of 13 minutes for learned-positions; the same command goes on after a kill. Traces of
          10 GB under ``$SINKSCOPE_WORK``. With --pair an hour of one core for 12 prompts.
"""

from dataclasses import replace

import _claims_on_movement
import _claims_on_placement
import _learned_positions
import _over_mixing
from _claims import read_part, report
from _lab_runs import PROMPTS, SHOTS, use_pair
from _settings import Arguments, run_script
from claims_page import ORDER, PAIR, PAIR_ORDER, RESULTS, write

READERS = {claim.name: (claim, read_part) for claim in (*_claims_on_placement.CLAIMS, *_claims_on_movement.CLAIMS)}
READERS |= {module.CLAIM.name: (module.CLAIM, module.read) for module in (_over_mixing, _learned_positions)}
"""Each claim, and the function that reads its parts."""


def main() -> None:
    parser = Arguments(__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(ORDER)}")
    parser.add_argument("--prompts", type=int, default=PROMPTS)
    parser.add_argument("--shots", type=int, nargs="*", choices=SHOTS, default=SHOTS)
    parser.add_argument("--pair", action="store_true", help="SmolLM2 and its sibling in place of the lab's models")
    arguments = parser.parse_args()
    folder, order = RESULTS, ORDER
    if arguments.pair:
        use_pair()
        folder, order = PAIR, PAIR_ORDER
    for name in arguments.names or order:
        if name not in READERS or name not in order:
            parser.error(f"no claim {name}; expected some of {', '.join(order)}")
        claim, read = READERS[name]
        if arguments.pair:
            claim = replace(claim, limits="")  # they speak of the lab's models
        report(claim, arguments.prompts, arguments.shots, read, folder)
        write(folder)


if __name__ == "__main__":
    run_script(main)

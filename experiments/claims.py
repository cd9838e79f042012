"""Measures claims of the papers, one after the other, and writes the page.

Command   python experiments/claims.py [NAME…] [--prompts 48] [--shots 0 1 2 5]; all of them without a name
Cost      with its nulls about a quarter of an hour of one core for 12 prompts and --shots 0 5, eight times that in
          full, and two trainings of 13 minutes for learned-positions; the same command goes on after a kill. Traces of
          10 GB under ``$SINKSCOPE_WORK``.
"""

import _claims_on_movement
import _claims_on_placement
import _learned_positions
import _over_mixing
from _claims import read_part, report
from _lab_runs import PROMPTS, SHOTS
from _settings import Arguments, run_script
from claims_page import ORDER, write

READERS = {claim.name: (claim, read_part) for claim in (*_claims_on_placement.CLAIMS, *_claims_on_movement.CLAIMS)}
READERS |= {module.CLAIM.name: (module.CLAIM, module.read) for module in (_over_mixing, _learned_positions)}
"""Each claim, and the function that reads its parts."""


def main() -> None:
    parser = Arguments(__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(ORDER)}")
    parser.add_argument("--prompts", type=int, default=PROMPTS)
    parser.add_argument("--shots", type=int, nargs="*", choices=SHOTS, default=SHOTS)
    arguments = parser.parse_args()
    for name in arguments.names or ORDER:
        if name not in READERS:
            parser.error(f"no claim {name}; expected some of {', '.join(ORDER)}")
        report(READERS[name][0], arguments.prompts, arguments.shots, READERS[name][1])
        write()


if __name__ == "__main__":
    run_script(main)

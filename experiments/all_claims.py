"""Every claim, one script after the other, and the page.

Command   python experiments/all_claims.py [--prompts 48] [--without NAME…]
Cost      about 30 minutes on one core, and another 14 for the two trainings of learned_positions; the same command goes on after a
          kill. The traces take 5 GB under experiments/work (or ``$SINKSCOPE_WORK``).
"""

import importlib

from _claims import read_part, report
from _lab_runs import PROMPTS
from _settings import Arguments, run_script
from claims_page import ORDER, write

SCRIPTS = {name: name.replace("-", "_") for name in ORDER}


def main() -> None:
    parser = Arguments(__doc__)
    parser.add_argument("--prompts", type=int, default=PROMPTS)
    parser.add_argument(
        "--without", nargs="*", default=[], choices=SCRIPTS, metavar="NAME", help="claims that are left out"
    )
    arguments = parser.parse_args()
    for name, script in SCRIPTS.items():
        if name not in arguments.without:
            module = importlib.import_module(script)
            report(module.CLAIM, arguments.prompts, f"{script}.py", getattr(module, "read", read_part))
            write()


if __name__ == "__main__":
    run_script(main)

"""`completion`: prints the script that completes commands and options in a shell."""

import contextlib
import io
from dataclasses import dataclass
from typing import Annotated, Literal

import tyro
from tyro.conf import DisallowNone, FlagCreatePairsOff, Positional, arg

from sinkscope.commands.command import Command

BASH = """
# Where nothing of the above fits, such as a model or a trace, files are completed.
_sinkscope() {
  _tyro_sinkscope
  [[ -n "${COMPREPLY[*]}" ]] || mapfile -t COMPREPLY < <(compgen -f -- "${COMP_WORDS[COMP_CWORD]}")
}
complete -o filenames -F _sinkscope sinkscope
"""


@dataclass(frozen=True, kw_only=True)
class Completion(Command):
    """Print the script with which a shell completes commands and options.

    bash: sinkscope completion bash > ~/.local/share/bash-completion/completions/sinkscope; zsh: write it as _sinkscope
    into a folder of $fpath; fish: ~/.config/fish/completions/sinkscope.fish.
    """

    shell: Annotated[Positional[Literal["bash", "zsh", "fish"]], arg(help="bash, zsh or fish.")]

    def run(self) -> None:
        from sinkscope.commands import COMMANDS, find_command

        script = io.StringIO()
        with contextlib.redirect_stdout(script), contextlib.suppress(SystemExit):
            tyro.extras.subcommand_cli_from_dict(
                {name: find_command(name) for name in COMMANDS},
                prog="sinkscope",
                args=["--tyro-print-completion", self.shell],
                config=(FlagCreatePairsOff, DisallowNone),
            )
        print(script.getvalue() + (BASH if self.shell == "bash" else ""))

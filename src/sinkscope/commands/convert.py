"""`convert`: makes model folders from paper 2's checkpoints, and folders for dllm."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional

from sinkscope.commands.command import Command, default_is


@dataclass(frozen=True, kw_only=True)
class Convert(Command):
    """Make a model folder from one of paper 2's checkpoints, or one for dllm from a model; no code in it is run.

    Attributes:
        file: a .pth that holds tensors only, or safetensors with the same names, of paper 2; or a model whose Llama,
            Qwen2 or Qwen3 looks both ways, for dllm.
        out: a new or empty folder.
        tokenizer: folder of the tokenizer with which paper 2's model was trained.
        heads: number of attention heads, for a width that was not published.
    """

    file: Positional[Path]
    out: Path
    tokenizer: Path | None = None
    heads: Annotated[int | None, default_is("the published")] = None

    def run(self) -> None:
        from sinkscope.commands.output import note
        from sinkscope.models.converting import convert, convert_to_dllm, tokens_without_text

        if self.tokenizer is None and self.file.suffix not in (".pth", ".safetensors"):
            print(convert_to_dllm(str(self.file), self.out))
            return
        print(convert(self.file, self.out, tokenizer=self.tokenizer, heads=self.heads))
        if missing := tokens_without_text(self.out):
            note(f"{missing:,} of its tokens have no text in {self.tokenizer}; was the model trained with it?")

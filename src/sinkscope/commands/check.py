"""`check`: tests whether sinkscope reads and runs a checkpoint correctly."""

import dataclasses
from dataclasses import dataclass

import sinkscope
from sinkscope.commands.command import Command, Device, Dtype, Json, ModelName
from sinkscope.commands.output import print_json, print_table
from sinkscope.counts import counted
from sinkscope.errors import SinkscopeError


@dataclass(frozen=True, kw_only=True)
class Check(Command):
    """Test a checkpoint: tensors, position embeddings, attention sums, and that hiding keys changes the predictions."""

    model: ModelName
    device: Device = "cpu"
    dtype: Dtype = None
    json: Json = False

    def run(self) -> None:
        from sinkscope.decoding.checking import check_model

        model = sinkscope.load(self.model, dtype=self.dtype, device=self.device)
        checks = check_model(model)
        failed = [one for one in checks if not one.passed]
        if self.json:
            found = {"checks": [dataclasses.asdict(one) for one in checks], "unread_keys": list(model.unread_keys)}
            print_json({"model": model.card.as_dict(), **found})
        else:
            rows = [("ok" if one.passed else "FAILED", f"{one.name}: {one.found}") for one in checks]
            if keys := ", ".join(model.unread_keys):
                rows.append(("note", f"keys of config.json that the network does not read: {keys}"))
            print_table(("", "check"), rows, ("", "check"))
        if failed:
            raise SinkscopeError(f"{self.model}: {counted(len(failed), 'check')} failed")

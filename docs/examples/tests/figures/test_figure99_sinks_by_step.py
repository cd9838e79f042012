"""Figure 99 counts the sinks that were planted."""


def test_every_step_has_its_sinks(draw, rows_of, sudden):
    found = {int(row["step"]): int(row["sinks"]) for row in rows_of(draw("99", sudden))}
    assert found == {step: 5 if step == 6 else 4 for step in range(12)}  # one more flashes in step 6

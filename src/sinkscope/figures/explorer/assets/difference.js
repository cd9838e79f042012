// Why two traces have no difference that means something, or nothing.
function incomparable(first, second) {
  const length = Math.max(first.promptLength, second.promptLength);
  const id = (one, position) => one.tokenIds[one.token(0, position)];
  if (first.model !== second.model || first.layers !== second.layers || first.heads !== second.heads) return "the models differ";
  if (first.promptLength !== second.promptLength || range(length).some((position) => id(first, position) !== id(second, position)))
    return "the prompts differ";
  return first.quantity(quantityOf(first)).label === second.quantity(quantityOf(second)).label ? "" : "the quantities differ";
}

class DifferenceView {
  constructor(section) {
    this.section = section;
    this.drawing = new Drawing(section.querySelector(".drawing"), "heat map of the difference");
    follow(this.drawing, {
      at: (x, y) => cellAt(this.drawing.inside, this.steps, this.positions, x, y),
      tell: (step, position) => shown()[1] && this.tell(step, position),
      choose: (step, token) => select({ step, token }),
    });
  }
  tell(step, position) {
    const { layer, head } = selection,
      name = quantityOf(shown()[0]),
      found = shown().map((one) => one.value(name, layer, head, step, position));
    const lines = shown().map(
      (one, place) => `${one.label}: ${quoted(one.reading(step, position))}, ${told(found[place], one.quantity(name).unit)}`,
    );
    return [
      `step ${step}, position ${position}`,
      ...lines,
      found[0] && found[1]
        ? `difference: ${found[0].exact && found[1].exact ? "" : "≈ "}${number(found[0].value - found[1].value, 4)}`
        : "",
    ].join("\n");
  }
  draw() {
    const [first, second] = shown();
    this.section.hidden = !second;
    if (!second) return;
    const reason = incomparable(first, second);
    this.section.querySelectorAll(".drawing, .legend").forEach((one) => (one.hidden = Boolean(reason)));
    if (reason) this.section.querySelector(".what").textContent = `not drawn: ${reason}`;
    if (reason || !this.drawing.size()) return;
    const { layer, head } = selection,
      name = quantityOf(first),
      left = first.rows(name, layer, head),
      right = second.rows(name, layer, head);
    this.steps = Math.min(first.steps, second.steps);
    this.positions = Math.min(first.positions, second.positions);
    this.section.querySelector(".what").textContent =
      `${first.label} minus ${second.label}: ${first.quantity(name).label}, ${headName(layer, head)}, the same step and position of both`;
    if (!left || !right) return;
    const at = (rows, step, position) => rows.table[rows.codes[rows.start + step * rows.stride + position]];
    const both = (step, position) => position < Math.min(first.length(step), second.length(step));
    this.drawing.paint(`${first.number}|${second.number}|${name}|${layer}|${head}`, (pen) => {
      let most = 1e-9;
      for (let step = 0; step < this.steps; step++)
        for (let position = 0; position < this.positions; position++)
          if (both(step, position)) most = Math.max(most, Math.abs(at(left, step, position) - at(right, step, position)));
      const shade = (step, position) =>
        both(step, position) ? Math.round(127.5 + (127.5 * (at(left, step, position) - at(right, step, position))) / most) : -1;
      const box = this.drawing.inside;
      paintShades(pen, box, this.steps, this.positions, shade, differenceRamp(), this.drawing.ratio, (one) => Math.abs(one - 127.5));
      axes(pen, box, { x: [0, this.positions], y: [0, this.steps], xLabel: "position in the canvas", yLabel: "step", down: true });
      legendBar(
        this.section.querySelector(".bar"),
        differenceRamp(),
        `${number(-most, 3)} (more in ${second.label})`,
        `${number(most, 3)} (more in ${first.label})`,
        first.quantity(name).unit,
      );
    });
    const pen = this.drawing.pen(this.drawing.marks),
      box = this.drawing.inside,
      tall = box.height / this.steps;
    if (selection.step < this.steps)
      frameOnMap(pen, box.left - 1, box.top + selection.step * tall - 0.5, box.width + 2, Math.max(2, tall + 1));
  }
}

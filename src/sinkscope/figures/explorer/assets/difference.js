// The quantity of which a difference is drawn: the one chosen, or what both traces have where they show different ones.
function comparedQuantity(first, second) {
  const mine = quantityOf(first);
  return mine === quantityOf(second) ? mine : "columns";
}

class DifferenceView {
  constructor(section) {
    this.section = section;
    this.drawing = new Drawing(section.querySelector(".drawing"), "heat map of the difference");
    follow(this.drawing, {
      at: (x, y) => cellAt(this.drawing.inside, this.steps, this.positions, x, y),
      tell: (step, position) => this.tell(step, position),
      choose: (step, token) => select({ step, token }),
    });
  }
  tell(step, position) {
    const { layer, head } = selection,
      name = comparedQuantity(...shown()),
      found = shown().map((one) => one.value(name, layer, head, step, position));
    const lines = shown().map(
      (one, place) => `${one.label}: ${quoted(one.text(one.token(step, position)))}, ${told(found[place], one.quantity(name).unit)}`,
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
    if (!second || !this.drawing.size()) return;
    const { layer, head } = selection,
      name = comparedQuantity(first, second),
      left = first.rows(name, layer, head),
      right = second.rows(name, layer, head);
    this.steps = Math.min(first.steps, second.steps);
    this.positions = Math.min(first.positions, second.positions);
    const otherwise = shown()
      .filter((one) => quantityOf(one) !== name)
      .map((one) => `; ${one.label} shows ${one.quantity(quantityOf(one)).label} above`)
      .join("");
    this.section.querySelector(".what").textContent =
      `${first.label} minus ${second.label}: ${first.quantity(name).label}, ${headName(layer, head)}, the same step and position of both${this.sameTokens(first, second) ? "" : "; the two prompts differ, so positions hold other tokens"}${otherwise}`;
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
    pen.strokeStyle = colour("swap");
    pen.lineWidth = 2;
    if (selection.step < this.steps)
      pen.strokeRect(box.left - 1, box.top + selection.step * tall - 0.5, box.width + 2, Math.max(2, tall + 1));
  }
  sameTokens(first, second) {
    const length = Math.min(first.promptLength, second.promptLength);
    return (
      first.promptLength === second.promptLength &&
      range(length).every((position) => first.tokenIds[first.token(0, position)] === second.tokenIds[second.token(0, position)])
    );
  }
}

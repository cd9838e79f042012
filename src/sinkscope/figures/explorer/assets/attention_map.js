// One attention map, which was kept with the trace or is computed by the server at hand.
class MapView {
  constructor(section) {
    this.section = section;
    this.drawing = new Drawing(section.querySelector(".drawing"), "attention map");
    this.wanted = section.querySelector("#map-on");
    this.wanted.addEventListener("change", draw);
    follow(this.drawing, {
      at: (x, y) => this.map && cellAt(this.box, this.map.queries, this.map.keys, x, y),
      tell: (query, key) => this.map && this.tell(query, key),
      choose: (query, key) => select({ token: key }),
    });
  }
  get box() {
    const side = Math.max(10, Math.min(this.drawing.width - 64, this.drawing.height - 44));
    return { left: 56, top: 6, width: side, height: side };
  }
  tell(query, key) {
    const recording = recordings[selection.first],
      { values, keys, step, error } = this.map,
      value = values[query * keys + key];
    const name = (position) => `${quoted(recording.reading(step, position))} (${position})`;
    return `${name(query)} gives ${error && value ? "≈ " : error ? "less than 0.0001, or no, " : ""}${value ? number(value, error ? 3 : 7) : error ? "part" : "0"} of its attention to ${name(key)}`;
  }
  place() {
    return [selection.first, stepOf(recordings[selection.first]), selection.layer, selection.head];
  }
  draw() {
    const recording = recordings[selection.first],
      [first, step, layer, head] = this.place(),
      key = this.place().join("-");
    this.section.hidden = !(page.served || recording.maps.length);
    if (this.section.hidden) return;
    const kept = recording.maps.some((one) => one.join() === [step, layer, head].join());
    const others = recording.maps
      .slice(0, 12)
      .map((one) => `step ${one[0]} layer ${one[1]} head ${one[2]}`)
      .join(", ");
    let what = head < 0 ? "choose a head" : `${headName(layer, head)}, step ${step}`;
    if (!kept && !page.served) what += `; not kept with this trace, which keeps ${others}`;
    this.drawing.place.hidden = !this.wanted.checked || head < 0 || (!kept && !page.served);
    this.section.querySelector(".what").textContent = what;
    if (this.drawing.place.hidden) return;
    if (this.key !== key) {
      clearTimeout(this.timer);
      this.timer = setTimeout(() => this.fetch(first, step, layer, head, kept, key), playing ? 0 : 150);
    }
    if (!this.map || !this.drawing.size()) return;
    const { values, queries, keys } = this.map,
      top = this.map.top;
    this.drawing.paint(this.map.key, (pen) => {
      paintShades(
        pen,
        this.box,
        queries,
        keys,
        (query, one) => Math.round(255 * Math.sqrt(Math.min(1, values[query * keys + one] / top))),
        heatRamp(),
        this.drawing.ratio,
      );
      axes(pen, this.box, { x: [0, keys], y: [0, queries], xLabel: "key: who is looked at", yLabel: "query: who looks", down: true });
      legendBar(this.section.querySelector(".bar"), heatRamp(), "0", number(top, 3), "of a query’s attention (colours by square root)");
    });
  }
  async fetch(first, step, layer, head, kept, key) {
    if (this.key === key || this.asked === key) return;
    this.asked = key;
    try {
      let values,
        queries,
        error = 0;
      if (kept && page.tiles[`${first}/map/${step}-${layer}-${head}`]) {
        const name = `${first}/map/${step}-${layer}-${head}`,
          table = valuesOf(page.tiles[name].scale);
        const codes = loaded.get(name) ?? (await load(name));
        values = Float32Array.from(codes, (code) => table[code]);
        queries = page.tiles[name].shape[0];
        error = 1;
      } else {
        const answer = await fetch(`map?trace=${first}&step=${step}&layer=${layer}&head=${head}`);
        if (!answer.ok) throw new Error((await answer.json()).error);
        values = new Float32Array(await answer.arrayBuffer());
        queries = Number(answer.headers.get("X-Queries"));
      }
      this.map = {
        values,
        queries,
        keys: values.length / queries,
        step,
        key,
        error,
        top: values.reduce((most, one) => Math.max(most, one), 1e-9),
      };
      this.key = key;
    } catch (error) {
      this.key = key;
      this.map = null;
      onProblem(error.message);
    }
    this.asked = "";
    draw();
  }
}

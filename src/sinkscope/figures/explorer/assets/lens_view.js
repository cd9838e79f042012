// What each layer would predict at sinks, beside matched positions: a document of `sinkscope lens --json`.
class LensView {
  constructor(section, lens) {
    this.lens = lens;
    section.hidden = !lens?.groups.length;
    if (section.hidden) return;
    this.body = section.querySelector("tbody");
    this.place = section.querySelector("select");
    this.columns = ["entropy", "kl", `agreement.${lens.predicts}`, `rank.${lens.predicts}`];
    const places = new Set(lens.groups.map((one) => one.place));
    for (const place of places) this.place.add(new Option(`${place}: ${counted(this.of(place, "sink").positions, "pair")}`, place));
    this.place.addEventListener("change", draw);
    section.querySelector(".what").textContent = `${lens.model}, ${lens.tuned ? "tuned" : "logit"} lens, ${counted(lens.traces, "trace")}`;
    section.querySelector(".legend").textContent =
      `${lens.headline}. Agrees: the top token is finally ${lens.predicts === "here" ? "on" : "behind"} the position; rank: of that token. Hovering shows 95 % intervals over ${lens.over}.`;
  }
  of(place, kind) {
    return this.lens.groups.find((one) => one.place === place && one.kind === kind);
  }
  draw() {
    const key = `${this.place?.value}|${selection.layer}|${dark()}`;
    if (!this.body || this.drawn === key) return;
    this.drawn = key;
    const groups = ["sink", "match"].map((kind) => this.of(this.place.value, kind)),
      strips = this.columns.map((name) => groups.map((one) => one.by_layer[name].mean));
    this.body.replaceChildren(
      ...range(this.lens.layers).map((up) => {
        const layer = this.lens.layers - 1 - up,
          line = document.createElement("tr"),
          button = document.createElement("button"),
          top = groups[0].top[layer];
        button.type = "button";
        button.textContent = layer;
        button.setAttribute("aria-label", `show layer ${layer}`);
        button.setAttribute("aria-pressed", layer === selection.layer);
        button.addEventListener("click", () => select({ layer }));
        line.insertCell().append(button);
        strips.forEach((pair, at) => pair.forEach((means, kind) => this.fill(line.insertCell(), this.columns[at], groups[kind], layer, pair)));
        line.insertCell().textContent = `${top.text === null ? `<${top.token}>` : quoted(top.text)} ${number(100 * top.share, 2)} %`;
        return line;
      }),
    );
  }
  // One number, shaded by its size among those of sinks and matches in all layers; ranks by their logarithm.
  fill(cell, name, group, layer, pair) {
    const { mean, low, high } = group.by_layer[name],
      size = (value) => (name.startsWith("rank") ? Math.log(value) : value);
    cell.textContent = number(mean[layer], 3);
    if (mean[layer] === null) return;
    if (low[layer] !== null) cell.title = `${number(low[layer], 3)} to ${number(high[layer], 3)}`;
    const shade = Math.round((255 * size(mean[layer])) / (size(Math.max(...pair.flat())) || 1));
    cell.style.background = cssOf(heatRamp(), shade);
    cell.style.color = inkOn(heatRamp(), shade);
  }
}

// Shows the page in a frame that can run its script and nothing else.
function render({ model, el }) {
  const frame = document.createElement("iframe");
  frame.setAttribute("sandbox", "allow-scripts");
  frame.setAttribute("title", "Explorer of attention sinks");
  frame.style.cssText = "width: 100%; border: 0; color-scheme: normal;";
  const size = () => { frame.style.height = `${model.get("height")}px`; };
  const fill = () => { frame.srcdoc = model.get("page"); };
  size();
  fill();
  model.on("change:height", size);
  model.on("change:page", fill);
  el.append(frame);
  return () => frame.remove();
}
export default { render };

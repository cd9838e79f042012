"""`ExplorerWidget`: the explorer inside a notebook, in a frame that can run its script and nothing else."""

import anywidget
import traitlets

SCRIPT = """
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
"""


class ExplorerWidget(anywidget.AnyWidget):
    """The page of an explorer as HTML, isolated from the notebook: no network, no access to the page around it."""

    _esm = SCRIPT
    page = traitlets.Unicode().tag(sync=True)
    height = traitlets.Int(900).tag(sync=True)

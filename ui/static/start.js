// Loads the tools for a picture to start from, with the first picture. Until then nothing asks for them.
// Gradio runs this once, with `element` and `props` of the part of the page it belongs to.
const source = element.closest("gradio-app")?.getAttribute("src");
const home = new URL(source ? source.replace(/\/?$/, "/") : location.pathname, location.href);
let tools = null;
const load = async (kept) => {
  const { begin } = await import(new URL(props.tools, home));
  const found = await begin(element.querySelector("[data-start]"), home);
  if (kept) await found.restore(kept);
  return found;
};

element.addEventListener("given", async ({ detail }) => {
  tools ??= load();
  (await tools).use(detail);
});
// A request asks for the page's picture, or for the one with the id `start`.
element.addEventListener("asked", ({ detail }) => {
  detail.answer = tools?.then((found) => found.uploaded(detail.start));
});
// A reload does not lose the picture: the tab keeps it, in a part that may be mounted later than this.
const restore = () => {
  const started = element.closest(".gradio-container").relay?.kept.started;
  if (started && props.tools) tools ??= load(started);
};
element.addEventListener("kept", restore);
restore();
element.querySelector("[data-start]").dataset.ready = "";

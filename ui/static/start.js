// Loads the tools for a picture to start from, with the first picture. Until then nothing asks for them.
// Gradio runs this once, with `element` and `props` of the part of the page it belongs to.
const source = element.closest("gradio-app")?.getAttribute("src");
const home = new URL(source ? source.replace(/\/?$/, "/") : location.pathname, location.href);
let tools = null;
const load = async () => {
  const { begin } = await import(new URL(props.tools, home));
  return begin(element.querySelector("[data-start]"), home);
};

element.addEventListener("given", async ({ detail }) => {
  tools ??= load();
  (await tools).use(detail);
});
// A request asks for the page's picture, or for the one with the id `start`.
element.addEventListener("asked", ({ detail }) => {
  detail.answer = tools?.then((found) => found.uploaded(detail.start));
});
element.querySelector("[data-start]").dataset.ready = "";

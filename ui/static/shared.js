// Begins the function that Gradio calls when a page opens; the page's scripts, which follow inside it,
// share what is defined here. On a page with several elements Gradio calls it several times.
const root = document.documentElement;
if (root.dataset.sdxl) return;
root.dataset.sdxl = "ready";

// The whole page is ours, unless it is embedded as an element of another page. Then only the content
// of the element is ours, and nothing else is searched or changed.
const alone = document.querySelector("gradio-app:not([src], [space])");
const around = (part) => part.closest?.("gradio-app") ?? alone;

// The address of the server that a part of the page is from; an embedding page has another one.
const home = (part) => {
  const source = part.closest("gradio-app")?.getAttribute("src");
  return new URL(source ? source.replace(/\/?$/, "/") : location.pathname, location.href);
};

const swallow = (event) => {
  event.preventDefault();
  event.stopPropagation();
};

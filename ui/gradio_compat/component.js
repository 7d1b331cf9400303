// Runs before Gradio's own script for the `<gradio-app>` element. Gradio sets the `lang` of the
// whole page to the visitor's language; the page around the element keeps its own, restored here.
const page = document.documentElement;
const language = page.getAttribute("lang");
const keeping = new MutationObserver(() => {
  if (language === null) page.removeAttribute("lang");
  else if (page.lang !== language) page.lang = language;
  if (page.dataset.sdxl) keeping.disconnect(); // the element is loaded: `lang` is not set again
});
keeping.observe(page, { attributeFilter: ["lang", "data-sdxl"] });

// Comes before Gradio's own script for the `<gradio-app>` element. Gradio says that all of the page is
// in the visitor's language; what is around the element has one of its own.
const page = document.documentElement;
const language = page.getAttribute("lang");
const keeping = new MutationObserver(() => {
  if (language === null) page.removeAttribute("lang");
  else if (page.lang !== language) page.lang = language;
  if (page.dataset.sdxl) keeping.disconnect(); // it is there, and has nothing more to say of that
});
keeping.observe(page, { attributeFilter: ["lang", "data-sdxl"] });

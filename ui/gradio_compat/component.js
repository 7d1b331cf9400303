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

// Visitors who have to sign in first get a link to the page in place of an empty element: no cookie
// gets from another site to the server.
const home = new URL(".", import.meta.url);
const answer = await fetch(new URL("gradio_api/app_id", home)).catch(() => null);
if (answer?.status === 401) {
  const { detail } = await answer.json();
  customElements.define("gradio-app", class extends HTMLElement {
    connectedCallback() {
      const link = document.createElement("a");
      Object.assign(link, { href: home, target: "_blank", textContent: detail });
      this.replaceChildren(link);
    }
  });
  await new Promise(() => {}); // the scripts that follow are not needed
}

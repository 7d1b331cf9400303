// The small parts of the page, each with the line or field that it belongs to.
import { alone, isSeen } from "./app.js";
import { openPanel } from "./page.js";

// Loads the tools for a picture to start from, with the first picture. Until then nothing asks for them.
export const start = (app, { element }) => {
  const place = element.querySelector("[data-start]");
  let tools = null;
  const load = async (kept) => {
    const { begin } = await import("./start/tools.js");
    const begun = await begin(app, place);
    if (kept) await begun.restore(kept);
    return begun;
  };
  for (const [name, act] of [["given", "use"], ["sketched", "sketch"]]) {
    element.addEventListener(name, async ({ detail }) => {
      tools ??= load();
      (await tools)[act](detail);
    });
  }
  // A request asks for the page's picture, or for the one with the id `start`.
  element.addEventListener("asked", ({ detail }) => {
    detail.answer = tools?.then((begun) => begun.uploaded(detail.start));
  });
  // A reload does not lose the picture: the tab keeps it, in a part that may be mounted later than this.
  const restore = () => {
    const started = app.page.relay?.kept.started;
    if (started) tools ??= load(started);
  };
  element.addEventListener("kept", restore);
  restore();
  place.dataset.ready = "";
};

// Shows the settings that were found, with the button that uses them, and tells the server of a file
// that is refused, and of a picture that is no longer there.
export const restored = (app, { element, trigger, watch }) => {
  const reveal = () => {
    const button = app.find("#restore-use");
    if (alone) (isSeen(button) ? button : element).scrollIntoView({ block: "nearest" });
  };
  watch("value", () => setTimeout(reveal)); // Gradio mounts the button meanwhile
  element.addEventListener("refused", ({ detail }) => {
    openPanel(app, "picture");
    trigger("select", detail);
  });
  element.addEventListener("removed", () => trigger("clear"));
};

// Keeps a setting of the picture to start from, as a text; `start/tools.js` shows and changes it.
export const field = (app, { element, props, watch }) => {
  const tell = () => element.dispatchEvent(new CustomEvent("start-field", { bubbles: true }));
  element.addEventListener("asked", ({ detail }) => { detail.value = props.value ?? ""; });
  element.addEventListener("given", ({ detail }) => {
    props.value = detail;
    tell();
  });
  watch("value", tell);
};

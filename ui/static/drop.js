// Pictures that are dropped or pasted anywhere, and settings that are pasted as a long text. A picture
// is edited on the stage; a text goes into the panel of pictures.

import { appOf, pause, swallow, type } from "./app.js";
import { fetchOnceBack } from "../gradio_compat/network.js";
import { openPanel } from "./page.js";

// Returns what the panel of pictures contains, which Gradio mounts when it is first needed.
const mounted = async (app) => {
  app.page.relay.mountPicturePanel();
  for (let tries = 0; tries < 100; tries++) {
    const panel = app.find("#panel-picture");
    const place = panel?.querySelector("#restore-picture input[type=file]");
    if (place && panel.querySelector("[data-start][data-ready]")) {
      return { place, field: panel.querySelector("#restore-text textarea") };
    }
    await pause(50);
  }
  return {};
};
const start = (detail, app, event = "given") => app.send("#start [data-start]", event, detail);
// The settings that are shown are those of the picture before.
const startAnew = (detail, app, event = "given") => {
  app.send("#restored .prose", "removed");
  start(detail, app, event);
};

// Edits a picture: a Blob, or the address of an image of the page.
export const editPicture = async (app, source) => {
  const load = async () => (await fetchOnceBack(app, () => fetch(source))).blob();
  const picture = source instanceof Blob ? source : await load();
  await mounted(app);
  startAnew(picture, app);
};

// Starts from a file that was given elsewhere as if it were chosen in the panel.
const read = async (file, app) => {
  const first = new DataTransfer();
  first.items.add(file);
  const { place } = await mounted(app);
  if (!place) return;
  // Tell the drop zone that nothing is dragged over it any more.
  place.parentElement.dispatchEvent(new DragEvent("drop", { dataTransfer: new DataTransfer() }));
  place.files = first.files;
  place.dispatchEvent(new Event("change", { bubbles: true }));
};

// Outside the drop zone the browser would otherwise leave the page and open the file. Something
// dragged from a page, unlike a file, also has the type text/html.
const given = ({ target, dataTransfer }) => {
  const types = dataTransfer?.types ?? [];
  const isFile = types.includes("Files") && !types.includes("text/html");
  return isFile ? appOf(target) : null;
};
document.addEventListener("dragover", (event) => {
  if (given(event)) event.preventDefault();
}, true);
document.addEventListener("drop", (event) => {
  const app = given(event);
  if (!app) return;
  swallow(event);
  read(event.dataTransfer.files[0], app);
}, true);

// Some programs put a picture of a text beside the text: a text field takes the text.
const pastedPicture = ({ target, clipboardData: { files, types } }) => {
  const isField = target.matches?.("textarea, input, [contenteditable]");
  if (isField && types.includes("text/plain")) return null;
  return [...files].find(({ type }) => type.startsWith("image/"));
};
// The prompt would cut off the end of a long text, where its settings are.
const pastedSettings = ({ target, clipboardData }) => {
  if (!target.matches?.("#prompt textarea")) return null;
  const text = clipboardData.getData("text/plain");
  const isLong = target.maxLength > 0 && text.length > target.maxLength;
  return isLong && /\nSteps: *\d/.test(text) ? text : null;
};
document.addEventListener("paste", async (event) => {
  const app = appOf(event.target);
  if (!app || !event.clipboardData) return;
  const picture = pastedPicture(event);
  const text = pastedSettings(event);
  if (!picture && !text) return;
  swallow(event);
  if (picture) {
    read(picture, app);
    return;
  }
  const { field } = await mounted(app);
  if (!field) return;
  openPanel(app, "picture");
  type(field, text);
}, true);

// A picture that was taken with a camera.
document.addEventListener("change", ({ target }) => {
  if (!target.matches?.("[data-camera]") || !target.files.length) return;
  startAnew(target.files[0], appOf(target));
  target.value = "";
});

// A drawing in place of a picture.
document.addEventListener("click", ({ target }) => {
  const button = target.closest?.("[data-sketch]");
  if (button) startAnew(button.dataset.sketch, appOf(button), "sketched");
});

// A file that cannot be read is refused before it is sent, with the page's own message.
const isUnfit = ({ name, size }, place, most) => {
  const kinds = place.accept.split(",").map((kind) => kind.trim());
  if (!kinds.some((kind) => name.toLowerCase().endsWith(kind))) return "unreadable";
  return size > most && "too large";
};
document.addEventListener("change", (event) => {
  const place = event.target;
  const app = place.closest?.("#restore-picture") && appOf(place);
  if (!app || !place.files?.length) return;
  const { most } = app.data;
  const [file] = place.files;
  const why = isUnfit(file, place, most);
  const isStart = why !== "unreadable";
  if (isStart) start(file, app);
  if (!why) return;
  swallow(event);
  place.value = "";
  if (isStart) return;
  app.send("#restored .prose", "refused", why);
}, true);

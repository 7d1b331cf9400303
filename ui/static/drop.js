// Pictures that are dropped or pasted anywhere, and settings that are pasted as a long text: the
// panel of pictures opens, and shows the picture to start from and the settings found.

import { appOf, pause, swallow, type } from "./app.js";

// Opens the panel, which Gradio mounts when it is first needed, and returns what it contains.
const opened = async (app) => {
  app.find("#chip-picture[aria-expanded='false']")?.click();
  for (let tries = 0; tries < 100; tries++) {
    const panel = app.find("#panel-picture");
    const place = panel?.querySelector("#restore-picture input[type=file]");
    if (place && panel.querySelector("[data-start][data-ready]")) {
      return { panel, place, field: panel.querySelector("#restore-text textarea") };
    }
    await pause(50);
  }
  return null;
};
// Beside the pictures there is room for the prompt and the tools of a picture, so both stay in sight.
const show = (panel) => {
  const isWide = matchMedia("(min-width: 821px)").matches;
  panel.scrollIntoView({ block: isWide ? "nearest" : "start" });
};
const start = (file, app) => app.send("#start [data-start]", "given", file);
// The settings that are shown are those of the picture before.
const startAnew = (file, app) => {
  app.send("#restored .prose", "removed");
  start(file, app);
};
const read = async (file, app) => {
  const first = new DataTransfer();
  first.items.add(file);
  const { panel, place } = await opened(app) ?? {};
  if (!place) return;
  // Tell the drop zone that nothing is dragged over it any more.
  place.parentElement.dispatchEvent(new DragEvent("drop", { dataTransfer: new DataTransfer() }));
  place.files = first.files;
  place.dispatchEvent(new Event("change", { bubbles: true }));
  show(panel);
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
  const { panel, field } = await opened(app) ?? {};
  if (!field) return;
  type(field, text);
  panel.scrollIntoView({ block: "start" });
}, true);

// A picture that was just drawn, by its address, or taken with a camera.
export const editPicture = async (app, address) => {
  const picture = await fetch(address).then((answer) => answer.blob());
  const { panel } = await opened(app) ?? {};
  if (!panel) return;
  startAnew(picture, app);
  show(panel);
};
document.addEventListener("change", ({ target }) => {
  if (!target.matches?.("[data-camera]") || !target.files.length) return;
  startAnew(target.files[0], appOf(target));
  target.value = "";
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

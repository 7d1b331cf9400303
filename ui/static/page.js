// The page's own behaviour in the browser: keys, focus, copying, and names for screen readers.
import { alone, appOf, forEachApp, isSeen, retype, swallow } from "./app.js";

// In a frame of another page, which has its own header and footer, ours are hidden.
const compact = alone && new URLSearchParams(location.search).get("embed") === "1";
document.documentElement.classList.toggle("sdxl-compact", Boolean(compact));

const press = (button) => {
  if (!isSeen(button)) return false;
  button.click();
  return true;
};

const closePicture = (app) => {
  const close = app.find("#gallery .preview [data-named='Close']");
  close?.click();
  return close;
};

// --- chips: each opens the panel of its name, a popover beside it ---

const nameOf = (part) => part.id.replace(/^(chip|panel)-/, "");
export const openPanel = (app, name) => {
  const panel = app.find(`#panel-${name}`);
  if (panel && !panel.matches(":popover-open")) panel.showPopover({ source: app.find(`#chip-${name}`) });
};
const connectPanels = (app) => {
  for (const chip of app.all("#chips [id^=chip-]")) {
    const panel = app.find(`#panel-${nameOf(chip)}`);
    chip.ariaExpanded ??= "false";
    if (!panel || chip.popoverTargetElement === panel) continue;
    panel.popover = "auto";
    chip.popoverTargetElement = panel;
    panel.addEventListener("toggle", ({ newState }) => {
      chip.ariaExpanded = String(newState === "open");
      panel.querySelector("label.selected")?.scrollIntoView({ block: "nearest" });
    });
    if (chip === pressed) openPanel(app, nameOf(chip));
  }
  app.find("#free-seed")?.setAttribute("aria-label", app.find("#randomise").textContent.trim());
};
// A panel that Gradio mounts when its chip is pressed opens as soon as it is there.
let pressed = null;
document.addEventListener("click", ({ target }) => {
  const chip = target.closest?.("[id^=chip-]");
  pressed = chip && !chip.popoverTargetElement ? chip : null;
}, true);

const closeEdit = (app) => {
  const { editing } = app.store.state;
  if (editing) app.store.dispatch("edit", { editing: false });
  return editing;
};

// --- keys and presses ---

// With one line Enter sends; with several it begins a new line. Shift reverses this.
const sends = ({ key, shiftKey, target }) => (
  key === "Enter" && target.matches?.("#prompt textarea") && shiftKey === target.rows > 1
);

// Buttons that a key that is held down presses once.
const ONCE = "#generate, #stop, #surprise, [data-example]";

// Captured before the fields see it, because in some of them Enter has a meaning of its own.
document.addEventListener("keydown", (event) => {
  const app = appOf(event.target);
  if (!app) return;
  const { repeat } = event;
  // A key that is held down presses once, and not also the button that appears in its place.
  if (repeat && event.target.closest?.(ONCE)) event.preventDefault();
  const runs = event.key === "Enter" && (event.ctrlKey || event.metaKey);
  if (!runs && !sends(event)) return;
  const prompt = app.find("#prompt textarea").value;
  const { isIgnored } = app.store.dispatch("entered", { prompt, repeat, at: performance.now() });
  if (isIgnored) swallow(event);
  else if (runs && !repeat && press(app.find("#generate"))) swallow(event);
}, true);
document.addEventListener("keydown", (event) => {
  const app = appOf(event.target);
  if (!app || event.key !== "Escape" || event.defaultPrevented) return;
  if (app.find("[popover=auto]:popover-open")) return; // which the browser closes
  const stop = () => press(app.find("#stop"));
  if (stop() || closeEdit(app) || closePicture(app)) return;
  // A request sent just now has no Stop yet: wait for it, for 2 s or until the next press.
  const ending = new AbortController();
  const again = setInterval(() => { if (stop()) ending.abort(); }, 50);
  ending.signal.addEventListener("abort", () => clearInterval(again));
  setTimeout(() => ending.abort(), 2000);
  for (const other of ["keydown", "pointerdown"]) {
    document.addEventListener(other, () => ending.abort(), { capture: true, signal: ending.signal });
  }
});

document.addEventListener("click", (event) => {
  const button = event.target.closest?.("#generate, #stop");
  const app = button && appOf(button);
  if (!app) return;
  const { id } = button;
  const click = { id, at: event.timeStamp, detail: event.detail };
  if (id !== "stop" && app.store.dispatch("pressed", click).isIgnored) event.stopPropagation();
  // Presses by key have the detail 0.
  if (event.detail && app.store.dispatch("aimed", click).isIgnored) swallow(event);
  else if (id === "stop") app.store.dispatch("stopped");
}, true);

// An example goes into the prompt and is drawn. Generate is hidden while something is drawn.
const draw = (app, prompt) => {
  retype(app.find("#prompt textarea"), prompt);
  press(app.find("#generate"));
};
let surprised = null; // the app in which Surprise was pressed, and what was typed there
document.addEventListener("click", (event) => {
  const button = event.target.closest?.("[data-example], #surprise");
  const app = button && appOf(button);
  if (!app) return;
  if (event.detail > 1) swallow(event);
  else if (button.id) surprised = { app, typed: app.find("#prompt textarea").value };
  else draw(app, button.dataset.example);
}, true);
document.addEventListener("sdxl-surprise", ({ detail }) => {
  const { app, typed } = surprised;
  app.find("#prompt textarea").value = typed; // Gradio has replaced it
  draw(app, detail);
});

// --- the closed parts open within sight ---

document.addEventListener("click", ({ target }) => {
  const part = target.closest?.("#more .label-wrap")?.parentElement;
  if (!part || !appOf(part) || !alone) return;
  // Gradio lays out what is in it in the next frame.
  const reveal = () => part.scrollIntoView({ block: "nearest" });
  requestAnimationFrame(() => requestAnimationFrame(reveal));
});

// --- copying ---

const copy = async (text) => {
  try {
    await navigator.clipboard.writeText(text);
  } catch { // pages without HTTPS have no clipboard
    const field = document.body.appendChild(document.createElement("textarea"));
    field.value = text;
    field.select();
    document.execCommand("copy");
    field.remove();
  }
};
document.addEventListener("click", async (event) => {
  const button = event.target.closest?.("button:is([data-copy], [data-link])");
  const app = button && appOf(button);
  if (!app) return;
  const { copy: text, link } = button.dataset;
  await copy(text ?? new URL(link, app.home).href);
  const said = button.textContent;
  if (said === button.dataset.copied) return;
  button.textContent = button.dataset.copied;
  setTimeout(() => { button.textContent = said; }, 1500);
});

// --- what the page shows ---

// A refusal holds until its field changes; settings that are taken can be given back.
document.addEventListener("input", ({ target }) => {
  if (target.matches?.("[data-refused]")) appOf(target)?.store.dispatch("corrected");
});
document.addEventListener("click", ({ target }) => {
  const app = target.closest?.("#restore-use, #use-pasted") && appOf(target);
  if (app) app.store.dispatch("taking", { fields: app.page.relay.kept.draft });
}, true);

// The field that a refusal names is marked until the message goes, and gets the focus.
const fieldOf = (app, id) => {
  if (id !== "start") return app.find(`#${id} :is(textarea, input)`);
  const { hasStart } = app.store.state;
  return app.find(hasStart ? "#edit [data-do=draw]" : "#restore-picture button");
};
const markRefused = (app) => {
  const said = app.find("#status [data-field]");
  const field = said && fieldOf(app, said.dataset.field);
  for (const panel of app.all(".chip-panel[data-refusal]")) if (!said) delete panel.dataset.refusal;
  for (const other of app.all("[data-refused]")) {
    if (other === field) continue;
    other.removeAttribute("aria-invalid");
    delete other.dataset.refused;
  }
  if (!field || said === app.refusal) return;
  app.refusal = said; // the message that was told last
  field.dataset.refused = "";
  if (!field.matches("button")) field.ariaInvalid = "true";
  const panel = field.closest(".chip-panel");
  if (panel) {
    panel.dataset.refusal = said.textContent; // it may lie over the line
    openPanel(app, nameOf(panel));
  }
  if (field.closest("#edit")) app.store.dispatch("edit", { editing: true });
  field.focus();
};

// Addresses of pictures are relative to the server, which may be another one than the page around's.
const showPictures = (app) => {
  const { pictures } = app.data;
  for (const label of app.all("#style label")) {
    const picture = pictures[label.querySelector("input").value];
    if (!picture) continue;
    label.dataset.pictured = "";
    label.style.setProperty("--picture", `url("${new URL(picture, app.home)}")`);
  }
  for (const image of app.all("#cards img:not([src])")) {
    image.src = new URL(image.dataset.src, app.home);
  }
};

// When the focused element disappears, the focus moves to the element that takes its place.
let focused = null;
let owner = null; // the app that the focused element is in
let picture = 0; // index of the picture that is open, or was
document.addEventListener("focusin", ({ target }) => {
  focused = target;
  owner = appOf(target);
});
const heir = (app) => {
  if (focused.closest("#free-seed")) return app.find("#chip-seed");
  if (focused.closest("#generate, #stop, #status, #tile-bar")) return app.all("#generate, #stop").find(isSeen);
  if (focused.closest("#pasted")) return app.find("#prompt textarea");
  const card = app.all("#cards button").indexOf(focused);
  if (card >= 0) return app.all("#gallery .thumbnail-lg")[card];
  const open = focused.closest(".preview, #picked, #walk");
  return open && (app.find("#gallery .thumbnail-small.selected") ?? app.all("#gallery .thumbnail-lg")[picture]);
};
const keepFocus = (app) => {
  if (app !== owner) return;
  const small = app.all("#gallery .thumbnail-small");
  if (small.length) picture = small.findIndex((thumbnail) => thumbnail.matches(".selected"));
  const isLost = [focused, document.body].includes(document.activeElement);
  if (isLost && !focused.checkVisibility()) heir(app)?.focus();
};

forEachApp((app) => app.whenOpen(() => {
  const keep = () => keepFocus(app);
  showPictures(app);
  connectPanels(app);
  // Inside another page the focus belongs to that page, which it would scroll.
  const isTop = alone && window.top === window;
  if (isTop && document.activeElement === document.body) app.find("#prompt textarea").focus();
  // A model that draws only from pictures begins with their panel.
  if (app.find("#header [data-masks]")) openPanel(app, "picture");
  app.watch("#ask", () => {
    connectPanels(app); // the panel of pictures is mounted late
    keep(); // the offer to use pasted settings goes
  }, {});
  app.watch("#chips", () => {
    connectPanels(app);
    keep();
  });
  // Which picture is open is a class; the panel of an opened picture is mounted late.
  app.watch("#pictures", keep, { subtree: true, attributeFilter: ["class"] });
  app.watch("#status", () => {
    markRefused(app);
    keep();
  });
  app.store.subscribe(({ running }, before) => {
    if (running === before.running) return;
    app.find("#act").toggleAttribute("data-running", running); // Stop takes the place of Generate
    requestAnimationFrame(keep);
  });
  document.documentElement.dataset.sdxl = "ready";
}));

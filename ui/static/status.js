// The line under Generate, which says what the page's state is; what may be done there; and the progress
// in the tab's title while nobody sees the page.
import { alone, make } from "./app.js";
import { lineOf } from "./state.js";

const SENT_AFTER_MS = 100; // lets Gradio render the end of one request before the next one begins

const ROLES = { error: "alert" };
const CLASSES = { error: "error", warning: "warning" };

// Text of the line, with the button that it offers.
const paragraph = ({ kind, text, field, action }, texts) => {
  const attributes = { class: CLASSES[kind] ?? "note", role: ROLES[kind] ?? "status" };
  if (field) attributes["data-field"] = field;
  const said = make("p", attributes, text);
  if (action) said.append(" ", make("button", { type: "button", "data-do": action }, texts[action]));
  return said;
};

const bar = (place) => {
  const shown = place.querySelector(".running");
  if (shown) return shown;
  const made = make("div", { class: "running", role: "status" }, make("progress"), make("span"));
  place.replaceChildren(made);
  return made;
};

// The element stays while the numbers in it change.
const showProgress = (place, { text, done, total }) => {
  const [progress, said] = bar(place).children;
  progress.ariaLabel = text;
  if (total) Object.assign(progress, { max: total, value: done });
  else progress.removeAttribute("value");
  if (said.textContent !== text) said.textContent = text;
};

export const begin = (app, { element, props, trigger, watch }) => {
  const { store } = app;
  const place = element.querySelector("[data-line]");
  const aside = element.querySelector("[data-aside]");
  const texts = () => app.data.status;
  let shown = null;
  let due;

  const show = () => {
    const line = lineOf(store.state, texts());
    if (line.kind === "running") showProgress(place, line);
    const told = JSON.stringify(line);
    if (told === shown) return;
    shown = told;
    if (line.kind === "running") return;
    const parts = line.text ? [paragraph(line, texts())] : [];
    if (line.warning) parts.push(paragraph({ kind: "warning", text: line.warning }));
    place.replaceChildren(...parts);
  };

  // The prompt that waits, which is sent when the pictures are finished.
  const send = () => {
    const { next, running } = store.state;
    if (!next || running) return;
    store.dispatch("sent", { at: performance.now() });
    trigger("next", { prompt: next });
  };
  const showAside = ({ next, aside: text }) => {
    aside.textContent = next ? `${texts().next} ` : text;
    if (next) aside.append(make("bdi", {}, next));
  };

  watch("value", () => {
    if (props.value) store.dispatch("told", { line: props.value });
  });
  store.subscribe((state, before) => {
    if (app.isOpen) show();
    if (state.next !== before.next || state.aside !== before.aside) showAside(state);
    clearTimeout(due);
    if (state.next && !state.running) due = setTimeout(send, SENT_AFTER_MS);
  });
  app.whenOpen(show);

  app.page.addEventListener("click", ({ target }) => {
    const action = target.closest?.("[data-do]")?.dataset.do;
    if (action === "sign_in") window.open(app.home, alone ? "_self" : "_blank");
    if (action === "undo" && target.closest("#status")) trigger("undo");
    if (action === "keep") trigger("next", app.live.kept());
    if (action === "finish") app.act("finish", app.find("#picture-texts [data-kind~=unfinished]"));
  });
  if (alone && window.top === window) tellTitle(store);
};

// While the tab is hidden its title has the progress, and then that the pictures are there.
const tellTitle = (store) => {
  const { title } = document;
  const tell = ({ running, line }, before) => {
    if (!document.hidden) document.title = title;
    else if (running) document.title = `${line.total ? `${line.done}/${line.total}` : "…"} · ${title}`;
    else if (before.running) document.title = `${line.kind === "drawn" ? "✓" : "!"} ${title}`;
  };
  store.subscribe(tell);
  document.addEventListener("visibilitychange", () => tell(store.state, store.state));
};

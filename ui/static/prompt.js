// The prompt's own comforts: what the model ignores is dimmed, one button clears the text, and the
// arrow keys bring earlier prompts back.
import { forEachApp, make, swallow, type } from "./app.js";
import { promptOf, read as entries } from "./entries.js";
import { ignored } from "./words.js";

const PAUSE_MS = 800; // after the last change: a word that is half typed is none

// Says which words the model does not know. The note itself stays in its place, so that screen readers
// hear what it says.
export const reading = (app, { element, watch }) => {
  const note = make("div", { class: "unknown", role: "status" });
  element.after(note);
  let due;
  const say = () => {
    note.textContent = element.querySelector("[data-unknown]")?.dataset.unknown ?? "";
    element.dispatchEvent(new Event("read", { bubbles: true }));
  };
  watch("value", () => {
    clearTimeout(due);
    due = setTimeout(say, PAUSE_MS);
  });
  say();
};

// Calls a function after each change of a field's text. Gradio fits the field to every text, so that one
// that nobody typed is noticed, too.
const whenChanged = (field, call) => {
  field.addEventListener("input", call);
  new MutationObserver(call).observe(field, { attributeFilter: ["style"] });
};

// A veil over the prompt: the same text in the same place, transparent, with a tint over what is ignored.
const cover = (app, field) => {
  const veil = make("div", { class: "veil", "aria-hidden": "true", hidden: true });
  field.after(veil);
  let said = {};
  const follow = () => { veil.scrollTop = field.scrollTop; };
  const draw = () => {
    const { value } = field;
    const children = [];
    let at = 0;
    for (const [from, to] of ignored(value, said)) {
      children.push(value.slice(at, from), make("span", {}, value.slice(from, to)));
      at = to;
    }
    veil.hidden = !children.length;
    // A last line without a sign has no height of its own.
    veil.replaceChildren(...children, `${value.slice(at)}\n`);
    if (veil.hidden) return;
    const { direction, overflowY } = getComputedStyle(field);
    Object.assign(veil.style, { direction, overflowY });
    follow();
  };
  const line = app.find("#length");
  const read = () => {
    const parts = [...line.querySelectorAll("[data-words], [data-left-out]")];
    const { words = "", leftOut, added } = Object.assign({}, ...parts.map(({ dataset }) => dataset));
    const ignoring = [...line.querySelectorAll("[data-ignored]")];
    const without = ignoring.flatMap(({ dataset }) => JSON.parse(dataset.ignored));
    said = { words: words.split(" ").filter(Boolean), without, leftOut, added };
    draw();
  };
  line.addEventListener("read", read);
  field.addEventListener("scroll", follow);
  whenChanged(field, draw);
  new ResizeObserver(draw).observe(field);
};

// One button clears the prompt, and then brings its text back until there is another one.
const clearing = (app, field) => {
  const { clear, back } = app.data.prompt;
  const button = make("button", { type: "button", class: "clear" });
  app.find("#prompt").append(button);
  let text = ""; // that was cleared
  const name = () => {
    if (field.value) text = "";
    button.toggleAttribute("data-back", Boolean(text));
    button.ariaLabel = button.title = text ? back : clear;
  };
  // The browser's own commands keep its list of changes, which Ctrl+Z goes back.
  const edit = (...command) => {
    field.focus({ preventScroll: true });
    field.select();
    document.execCommand(...command);
  };
  button.addEventListener("pointerdown", (event) => event.preventDefault()); // keeps the focus
  button.addEventListener("click", () => {
    const { value } = field;
    if (value) edit("delete");
    else edit("insertText", false, text);
    text = value;
    name();
  });
  whenChanged(field, name);
  name();
};

// Up in an empty prompt shows the newest of the earlier prompts, and then older ones.
const walking = (field) => {
  let prompts = []; // with the empty one first
  let at = 0;
  const go = (to) => {
    at = to;
    type(field, prompts[at]);
    field.setSelectionRange(prompts[at].length, prompts[at].length);
  };
  // The prompt is walked until it is another one, or the caret is put elsewhere.
  const leave = () => {
    prompts = [];
    at = 0;
  };
  field.addEventListener("input", () => { if (field.value !== prompts[at]) leave(); });
  field.addEventListener("pointerdown", leave);
  field.addEventListener("keydown", (event) => {
    const { key, altKey, ctrlKey, metaKey, shiftKey, isComposing } = event;
    const step = { ArrowUp: 1, ArrowDown: -1 }[key];
    if (["Alt", "Control", "Meta", "Shift"].includes(key)) return;
    if (!step || altKey || ctrlKey || metaKey || shiftKey || isComposing) {
      leave();
      return;
    }
    const { value, selectionStart, selectionEnd } = field;
    if (value !== prompts[at]) leave();
    if (!value && step > 0 && !at) prompts = ["", ...new Set(entries().map(promptOf).filter(Boolean))];
    const isAtEdge = step > 0
      ? !value.slice(0, selectionStart).includes("\n")
      : !value.slice(selectionEnd).includes("\n");
    if (!isAtEdge || !(at + step in prompts)) return;
    swallow(event);
    go(at + step);
  });
};

forEachApp((app) => app.whenOpen(() => {
  const field = app.find("#prompt textarea");
  cover(app, field);
  clearing(app, field);
  walking(field);
}));

// Shared by the page's scripts: the elements of a document that show this page, and small helpers.
import { Store } from "./state.js";

// The whole page is ours, unless it is embedded as an element of another page. Then only the content
// of the element is ours, and nothing else is searched or changed.
export const alone = document.querySelector("gradio-app:not([src], [space])");

const apps = new Map(); // by the `<gradio-app>` element

// The app that a part of a document is in, if it is one of this program.
export const appOf = (part) => apps.get(part?.closest?.("gradio-app") ?? alone);

// One element that shows the page. A document may have several.
class App {
  store = new Store();
  #opened = [];
  isOpen = false;

  constructor(root, page, home) {
    Object.assign(this, { root, page, home }); // `home` is the address of the server
  }

  find(selector) {
    return this.page.querySelector(selector);
  }

  all(selector) {
    return [...this.page.querySelectorAll(selector)];
  }

  // What the heading holds for the scripts: translated names, pictures, limits.
  get data() {
    return JSON.parse(this.find("#header [data-page]").dataset.page);
  }

  // Calls a function as soon as all parts of the page are there.
  whenOpen(call) {
    if (this.isOpen) call();
    else this.#opened.push(call);
  }

  open() {
    this.isOpen = true;
    for (const call of this.#opened.splice(0)) call();
  }

  // Calls a function now, and after each change below one part of the page.
  watch(selector, call, options = { subtree: true }) {
    const part = this.find(selector);
    if (!part) return;
    new MutationObserver(call).observe(part, { childList: true, ...options });
    call();
  }

  send(selector, type, detail) {
    this.find(selector)?.dispatchEvent(new CustomEvent(type, { bubbles: true, detail }));
  }
}

const newcomers = [];

// Calls a function with each app of this document, now and later.
export const forEachApp = (call) => {
  newcomers.push(call);
  apps.forEach(call);
};

// The app of a part, as Gradio's scripts for parts know it.
export const enter = (element, home) => {
  const root = element.closest("gradio-app");
  const known = apps.get(root);
  if (known) return known;
  const app = new App(root, element.closest(".gradio-container"), home);
  apps.set(root, app);
  for (const call of newcomers) call(app);
  return app;
};

export const swallow = (event) => {
  event.preventDefault();
  event.stopPropagation();
};

export const isSeen = (part) => Boolean(part?.offsetParent);

// Brings a part into view, from its top if not all of it fits. The page around an element is scrolled by
// its visitor alone.
export const reveal = (part) => {
  if (!alone) return;
  part.scrollIntoView({ block: "nearest" });
  if (part.getBoundingClientRect().top < 0) part.scrollIntoView();
};

export const pause = (ms) => new Promise((wake) => setTimeout(wake, ms));

// Replaces a field's text so that the browser's undo brings it back.
export const retype = (field, text) => {
  const focused = document.activeElement;
  field.focus({ preventScroll: true });
  field.select();
  if (!document.execCommand("insertText", false, text)) type(field, text);
  focused?.focus({ preventScroll: true });
};

// Puts a text into a field, as if it were typed.
export const type = (field, text) => {
  field.value = text;
  field.dispatchEvent(new Event("input", { bubbles: true }));
};

export const make = (tag, attributes = {}, ...children) => {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== false) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children);
  return made;
};

// Values in a storage of the browser, which may have none for this page, no room, or anything in it:
// other versions of this page, or pages of its origin, write it.
export const kept = {
  read(storage, key) {
    try {
      return JSON.parse(window[storage].getItem(key));
    } catch {
      return null;
    }
  },
  // Returns whether there was room. Keeps nothing for no value.
  write(storage, key, value) {
    try {
      // An older value must not come back if there is no room for this one.
      window[storage].removeItem(key);
      if (value) window[storage].setItem(key, JSON.stringify(value));
      return true;
    } catch {
      return false;
    }
  },
};

// The filmstrip of this visit's requests, and the list of all.
import { make, pause } from "./app.js";
import { addToVisit, find, isOfVisit, look, read, remove, write } from "./entries.js";

const STEPS = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity };

const isPicture = (address) => address?.startsWith("data:image/jpeg;");
const promptOf = (entry) => new URLSearchParams(entry.link).get("prompt") ?? "";

// Scrolls so that the top of a part can be seen, if it cannot.
const bringIntoView = (part) => {
  const { top } = part.getBoundingClientRect();
  if (top < 0 || top > innerHeight / 2) part.scrollIntoView({ block: "start" });
};

export const begin = (app, { element, trigger }) => {
  const [strip, list, note] = ["strip", "list", "cleared"].map((name) => (
    element.querySelector(`[data-${name}]`)
  ));
  const film = strip.querySelector("[role=toolbar]");
  const opener = strip.querySelector("#history-open");
  const entered = new Set(); // ids of requests, including entries that were cleared since
  let shownId = null; // id of the request whose pictures were announced last
  let cleared = []; // entries that Undo brings back

  // Returns a button that brings a request back, with its pictures on it.
  const buttonOf = (entry) => {
    const button = make("button", { type: "button", "data-request": entry.id });
    if (isPicture(entry.look)) button.append(make("img", { src: entry.look, alt: "" }));
    button.addEventListener("click", () => {
      // While a request is drawn its pictures stay in view: without an id, only settings return.
      const id = app.store.state.running ? "" : entry.id;
      trigger("select", { link: entry.link, id });
      bringIntoView(app.find("#stage"));
    });
    return button;
  };

  const row = (entry) => {
    const button = buttonOf(entry);
    const when = new Date(entry.at).toLocaleString([], { dateStyle: "medium", timeStyle: "short" });
    button.append(
      make("span", { dir: "auto" }, promptOf(entry)), make("small", {}, `${entry.said} · ${when}`));
    return make("li", {}, button);
  };

  const frame = (entry) => {
    const button = buttonOf(entry);
    button.title = promptOf(entry);
    button.setAttribute("aria-label", button.title);
    if (entry.id === shownId) button.setAttribute("aria-current", "true");
    return button;
  };

  // Replaces the children of a list; the focus stays on the same request.
  const replace = (parent, children) => {
    const { request } = parent.contains(document.activeElement) ? document.activeElement.dataset : {};
    parent.replaceChildren(...children);
    if (request) {
      parent.querySelector(`[data-request="${CSS.escape(request)}"]`)?.focus({ preventScroll: true });
    }
  };

  // Tab reaches one button of the filmstrip; the arrow keys move to the others.
  const reachable = (button) => {
    for (const child of film.children) child.tabIndex = child === button ? 0 : -1;
  };

  const show = () => {
    const entries = read();
    const filmed = entries.filter((entry) => isOfVisit(entry) && isPicture(entry.look));
    strip.hidden = entries.length < 2 && entries.every(isOfVisit);
    if (strip.hidden) open(false);
    replace(film, filmed.map(frame));
    film.hidden = !filmed.length;
    const first = [":focus", "[aria-current]", "button"].map((which) => film.querySelector(which));
    reachable(first.find(Boolean));
    replace(list.querySelector("ol"), entries.map(row));
    note.hidden = !cleared.length;
  };

  // Shows the list here and in the other elements of this document: only other documents are told.
  const showAll = () => dispatchEvent(new Event("storage"));

  const open = (isOpen) => {
    list.hidden = !isOpen;
    opener.setAttribute("aria-expanded", String(isOpen));
  };

  // Returns the addresses of these files, once the gallery shows them all.
  const shown = async (files) => {
    for (let tries = 0; tries < 100; tries++) {
      const addresses = app.all("#gallery img").map((image) => image.src);
      const matching = files.map((file) => addresses.find((address) => address.endsWith(file)));
      if (matching.every(Boolean)) return matching;
      await pause(100);
    }
    throw new Error("other pictures are shown");
  };

  element.addEventListener("news", async ({ detail: news }) => {
    const { id, link, said, drawn } = news ?? {};
    shownId = id ?? shownId;
    // A request is told again when it has ended. That must not bring back an entry that was cleared.
    if (link && !entered.has(id) && !find(id)) {
      entered.add(id);
      addToVisit(id);
      cleared = [];
      write({ id, link, said, at: Date.now() });
    }
    if (drawn && find(id) && !find(id).look) {
      const picture = await shown(drawn).then(look).catch(() => null);
      const entry = find(id); // may have been cleared
      if (picture && entry) {
        write({ ...entry, look: picture });
        film.scrollLeft = 0;
      }
    }
    showAll();
  });

  const clear = () => {
    cleared = read();
    cleared.forEach(remove);
    showAll();
    note.querySelector("[data-undo]").focus();
  };

  const undo = () => {
    cleared.forEach(write);
    cleared = [];
    showAll();
    opener.focus();
  };

  element.addEventListener("click", ({ target }) => {
    if (target.closest("[data-clear]")) clear();
    if (target.closest("[data-undo]")) undo();
    if (target.closest("#history-open")) open(list.hidden);
  });

  film.addEventListener("keydown", (event) => {
    if (!(event.key in STEPS)) return;
    const buttons = [...film.children];
    const to = buttons.indexOf(event.target) + STEPS[event.key];
    const next = buttons[Math.max(0, Math.min(to, buttons.length - 1))];
    reachable(next);
    next.focus();
    event.preventDefault();
  });

  addEventListener("storage", show);
  show();
};

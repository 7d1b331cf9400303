// The filmstrip of this visit's requests, and the list of all.
// Gradio runs this once, with `element` and `trigger` of the part of the page it belongs to.
const page = element.closest(".gradio-container"); // may be embedded in another page
const [strip, list, note] = ["strip", "list", "cleared"].map((name) => (
  element.querySelector(`[data-${name}]`)
));
const film = strip.querySelector("[role=toolbar]");
const opener = strip.querySelector("#history-open");
const entered = new Set(); // ids of requests, including entries that were cleared since
let shownId = null; // id of the request whose pictures were announced last
let cleared = []; // entries that Undo brings back

const add = (parent, tag, text = "") => {
  const child = parent.appendChild(document.createElement(tag));
  child.textContent = text; // never as HTML
  return child;
};

const isPicture = (address) => address?.startsWith("data:image/jpeg;");
const promptOf = (entry) => new URLSearchParams(entry.link).get("prompt") ?? "";

// Returns a button that brings a request back, with its pictures on it.
const buttonOf = (entry) => {
  const button = document.createElement("button");
  button.type = "button";
  button.dataset.request = entry.id;
  if (isPicture(entry.look)) Object.assign(add(button, "img"), { src: entry.look, alt: "" });
  button.addEventListener("click", () => {
    // While a request is drawn its pictures stay in view: without an id, only settings return.
    const busy = page.querySelector("#status .running");
    trigger("select", { link: entry.link, id: busy ? "" : entry.id });
    bringIntoView(page.querySelector("#stage"));
  });
  return button;
};

// Scrolls so that the top of a part can be seen, if it cannot.
const bringIntoView = (part) => {
  const { top } = part.getBoundingClientRect();
  if (top < 0 || top > innerHeight / 2) part.scrollIntoView({ block: "start" });
};

const row = (entry) => {
  const item = document.createElement("li");
  const button = item.appendChild(buttonOf(entry));
  add(button, "span", promptOf(entry)).dir = "auto";
  const when = new Date(entry.at).toLocaleString([], { dateStyle: "medium", timeStyle: "short" });
  add(button, "small", `${entry.said} · ${when}`);
  return item;
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
  for (const each of film.children) each.tabIndex = each === button ? 0 : -1;
};

const show = () => {
  const entries = read();
  const filmed = entries.filter((entry) => isOfVisit(entry) && isPicture(entry.look));
  strip.hidden = entries.length < 2 && entries.every(isOfVisit);
  if (strip.hidden) open(false);
  replace(film, filmed.map(frame));
  film.hidden = !filmed.length;
  const first = [":focus", "[aria-current]", "button"].map((each) => film.querySelector(each));
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
    const addresses = [...page.querySelectorAll("#gallery img")].map((image) => image.src);
    const found = files.map((file) => addresses.find((address) => address.endsWith(file)));
    if (found.every(Boolean)) return found;
    await new Promise((wake) => setTimeout(wake, 100));
  }
  throw new Error("other pictures are shown");
};

element.addEventListener("news", async ({ detail: news }) => {
  const known = (entries) => entries.find((entry) => entry.id === news?.id);
  shownId = news?.id ?? shownId;
  // The first message about a request may be lost if other requests end at that moment, so it is
  // sent again. The second one must not bring back an entry that was cleared since.
  if (news?.link && !entered.has(news.id) && !known(read())) {
    entered.add(news.id);
    addToVisit(news.id);
    cleared = [];
    write({ id: news.id, link: news.link, said: news.said, at: Date.now() });
  }
  if (news?.drawn && known(read()) && !known(read()).look) {
    const found = await shown(news.drawn).then(look).catch(() => null);
    const entry = known(read()); // may have been cleared
    if (found && entry) {
      write({ ...entry, look: found });
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

const STEPS = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity };
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

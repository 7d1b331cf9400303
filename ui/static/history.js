// The filmstrip of this visit's requests, and the grid of all. A click shows what an entry is; its
// settings are taken by a button only.
import { alone, make, pause } from "./app.js";
import {
  addToVisit, find, goneOf, hasRoomForFavourites, isOfVisit, look, promptOf, read, remove, without, write,
} from "./entries.js";

const isPicture = (address) => address?.startsWith("data:image/jpeg;");
const isRemoval = (key) => key === "Delete" || key === "Backspace";

// Scrolls so that the top of a part can be seen, if it cannot.
const bringIntoView = (part) => {
  if (!alone) return; // the page around is scrolled by its visitor alone
  const { top } = part.getBoundingClientRect();
  if (top < 0 || top > innerHeight / 2) part.scrollIntoView({ block: "start" });
};

// Returns the button to which a key leads from another one of a grid; undefined at its edges.
const next = (buttons, from, key) => {
  const topOf = (button) => button.getBoundingClientRect().top;
  const columns = buttons.filter((button) => topOf(button) === topOf(buttons[0])).length;
  const at = buttons.indexOf(from);
  return buttons[{
    ArrowLeft: at - 1,
    ArrowRight: at + 1,
    ArrowUp: at - columns,
    ArrowDown: at + columns,
    Home: 0,
    End: buttons.length - 1,
  }[key]];
};

export const begin = (app, { element, trigger }) => {
  const part = (name) => element.querySelector(`[data-${name}]`);
  const [strip, list, detail, foot, note] = ["strip", "list", "detail", "foot", "note"].map(part);
  const film = strip.querySelector("[role=toolbar]");
  const grid = list.querySelector("ol");
  const opener = strip.querySelector("#history-open");
  const entered = new Set(); // ids of requests, including entries that were deleted since
  const forgotten = new Set(); // ids of requests whose pictures the server no longer keeps
  let followedId = null; // id of the request that was announced last
  let drawnId = null; // id of the request whose pictures were announced last
  let chosenId = null; // id of the entry that was chosen
  let isAwaited = false; // whether the pictures of that entry are to come into view
  let deleted = []; // entries as they were, which Undo brings back
  let undrop = null; // brings back the rest; null if there is nothing to undo

  // Returns the id of the request whose pictures are in the gallery.
  const inGallery = () => {
    const first = app.find("#picture-texts article");
    if (!first) return null;
    return first.matches('[data-kind~="unfinished"]') ? followedId : drawnId;
  };

  // --- what is shown ---

  const tile = (entry) => {
    const prompt = promptOf(entry);
    const star = entry.favourite ? `, ${part("keep").textContent}` : "";
    const button = make("button", {
      type: "button",
      title: prompt,
      "aria-label": prompt + star,
      "aria-current": entry.id === (chosenId ?? followedId) && "true",
      "data-favourite": Boolean(entry.favourite),
      "data-request": entry.id,
    });
    if (isPicture(entry.look)) {
      const image = make("img", { src: entry.look, alt: "" });
      image.addEventListener("load", () => {
        const count = Math.round(image.naturalWidth / image.naturalHeight);
        if (count > 1) button.dataset.count = count;
      });
      button.append(image);
    } else {
      button.append(make("span", { dir: "auto" }, prompt));
    }
    return button;
  };

  const buttonsOf = (parent) => [...parent.querySelectorAll("button")];
  const buttonFor = (parent, id) => parent.querySelector(`[data-request="${CSS.escape(id)}"]`);

  // Tab reaches one button of a list; the arrow keys move to the others.
  const reachable = (parent, button) => {
    for (const other of buttonsOf(parent)) other.tabIndex = other === button ? 0 : -1;
  };

  // Replaces the children of a list; the focus stays on the same request.
  const replace = (parent, children) => {
    const { request } = parent.contains(document.activeElement) ? document.activeElement.dataset : {};
    parent.replaceChildren(...children);
    if (request) buttonFor(parent, request)?.focus({ preventScroll: true });
    const first = [":focus", "[aria-current]", "button"].map((which) => parent.querySelector(which));
    reachable(parent, first.find(Boolean));
  };

  const describe = () => {
    const entry = chosenId && find(chosenId);
    detail.hidden = !entry;
    if (!entry) return;
    const when = new Date(entry.at).toLocaleString([], { dateStyle: "medium", timeStyle: "short" });
    const isForgotten = forgotten.has(entry.id);
    const image = detail.querySelector("img");
    image.hidden = !isPicture(entry.look) || !(isForgotten || app.store.state.running);
    if (!image.hidden) image.src = entry.look;
    part("prompt").textContent = promptOf(entry);
    detail.querySelector("small").textContent = `${entry.said} · ${when}`;
    part("forgotten").hidden = !isForgotten;
    part("keep").ariaPressed = String(Boolean(entry.favourite));
  };

  const show = () => {
    const entries = read();
    const filmed = entries.filter((entry) => isOfVisit(entry) && isPicture(entry.look));
    strip.hidden = !entries.length;
    if (strip.hidden) open(false);
    replace(film, filmed.map(tile));
    film.hidden = !filmed.length || !list.hidden;
    replace(grid, entries.map((entry) => make("li", {}, tile(entry))));
    part("stay").hidden = !entries.some(({ favourite }) => favourite);
    part("empty").hidden = Boolean(entries.length);
    describe();
  };

  // Shows the entries here and in the other elements of this document: only other documents are told.
  const showAll = () => dispatchEvent(new Event("storage"));

  const open = (isOpen) => {
    list.hidden = !isOpen;
    foot.hidden = !isOpen;
    film.hidden = isOpen || !film.children.length;
    opener.setAttribute("aria-expanded", String(isOpen));
    if (isOpen && alone) list.scrollIntoView({ block: "nearest" });
  };

  // --- notes, of which some offer Undo ---

  const hush = () => {
    note.togglePopover(false);
    deleted = [];
    undrop = null;
  };
  const say = (kind) => {
    for (const text of note.querySelectorAll("[data-said]")) text.hidden = text.dataset.said !== kind;
    part("undo").hidden = !undrop;
    note.togglePopover(true);
  };

  // --- actions ---

  const choose = (id) => {
    chosenId = id;
    if (id === inGallery()) bringIntoView(app.find("#stage"));
    // While a request is drawn, the place of the pictures is taken.
    else if (!app.store.state.running) {
      isAwaited = true;
      trigger("select", { id, gone: goneOf(id) });
    }
    show();
  };

  const use = ({ link }) => {
    app.store.dispatch("taking", { fields: app.page.relay.kept.draft });
    trigger("use", { link });
  };

  const toggle = (id) => {
    const entry = find(id);
    if (!entry) return;
    if (!entry.favourite && !hasRoomForFavourites()) {
      hush();
      say("full");
      return;
    }
    write({ ...entry, favourite: !entry.favourite });
    showAll();
  };

  // Lets a reload not show a request of which pictures were deleted, because it would show them all.
  // Returns what brings it back.
  const unfollow = (isFollowed) => {
    const { kept, keep } = app.page.relay;
    const { request } = kept;
    if (!isFollowed(request)) return () => {};
    keep("request", null);
    return () => keep("request", request);
  };

  const take = (entries, kind) => {
    hush();
    deleted = entries;
    entries.forEach(remove);
    undrop = unfollow((request) => entries.some(({ id, gone }) => gone && id === request));
    showAll();
    say(kind);
  };

  const undo = () => {
    const [first] = deleted;
    for (const entry of deleted) {
      const favourite = find(entry.id)?.favourite ?? (entry.favourite && hasRoomForFavourites());
      write({ ...entry, favourite });
    }
    undrop();
    hush();
    showAll();
    const place = list.hidden ? film : grid;
    (buttonFor(place, first?.id ?? "") ?? opener).focus({ preventScroll: true });
  };

  // Takes a picture out of the gallery, and out of the entry of its request, if there is one. The entry
  // of a request without pictures goes, too.
  const removePicture = async (key) => {
    const texts = app.all("#picture-texts article");
    const place = texts.findIndex(({ dataset }) => dataset.key === key);
    const shownId = inGallery();
    const entry = find(shownId ?? "");
    if (place < 0) return;
    const isLast = texts.length === 1;
    const gone = [...new Set([...entry?.gone ?? [], Number(texts[place].dataset.index)])];
    const isOpen = app.find("#gallery .preview") && !isLast;
    app.store.dispatch("removed");
    const open = isOpen ? Math.min(place, texts.length - 2) : null;
    trigger("drop", { key, open, gone: String(gone) });
    hush();
    const refollow = unfollow((request) => (isLast || !entry) && request === shownId);
    if (entry) {
      deleted = [entry];
      if (isLast) remove(entry);
      else write({ ...entry, gone });
    }
    undrop = () => {
      refollow();
      if (inGallery() === null || inGallery() === shownId) trigger("undrop");
    };
    say("picture");
    showAll();
    if (!entry || isLast || !isPicture(entry.look)) return;
    const left = texts.filter(({ dataset }) => !entry.gone?.includes(Number(dataset.index)));
    const smaller = await without(entry.look, left.indexOf(texts[place])).catch(() => null);
    const changed = find(entry.id);
    if (!smaller || changed?.look !== entry.look || !deleted.includes(entry)) return;
    write({ ...changed, look: smaller });
    showAll();
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

  // --- events ---

  element.addEventListener("news", async ({ detail: news }) => {
    const { id, link, said, drawn } = news ?? {};
    if (!id) return;
    if (news.forgotten) forgotten.add(id);
    else {
      forgotten.delete(id);
      followedId = id;
      if (drawn) drawnId = id;
      if (drawn && id !== chosenId) chosenId = null; // other pictures are in view
    }
    // A request is told again when it has ended. That must not bring back an entry that was deleted.
    if (link && !entered.has(id) && !find(id)) {
      entered.add(id);
      addToVisit(id);
      hush();
      chosenId = null;
      write({ id, link, said, at: Date.now() });
    }
    if (isAwaited && id === chosenId) {
      isAwaited = false;
      if (!news.forgotten) bringIntoView(app.find("#stage"));
    }
    if (drawn && find(id) && !find(id).look) {
      const picture = await shown(drawn).then(look).catch(() => null);
      const entry = find(id); // may have been deleted
      if (picture && entry) {
        write({ ...entry, look: picture });
        film.scrollLeft = 0;
      }
    }
    showAll();
  });

  const clear = () => {
    take(read().filter(({ favourite }) => !favourite), "cleared");
    part("undo").focus();
  };

  element.addEventListener("click", ({ target }) => {
    const button = target.closest("button");
    const entry = chosenId && find(chosenId);
    if (!button) return;
    if (button.dataset.request) choose(button.dataset.request);
    else if (button.matches("[data-clear]")) clear();
    else if (button.matches("[data-undo]")) undo();
    else if (button.matches("[data-close]")) hush();
    else if (button === opener) open(list.hidden);
    else if (!entry) show(); // another tab may have deleted it
    else if (button.matches("[data-use]")) use(entry);
    else if (button.matches("[data-keep]")) toggle(entry.id);
    else if (button.matches("[data-delete]")) {
      take([entry], "entry");
      part("undo").focus();
    }
  });

  for (const parent of [film, grid]) {
    parent.addEventListener("keydown", (event) => {
      const buttons = buttonsOf(parent);
      const at = buttons.indexOf(event.target);
      const entry = find(event.target.dataset.request ?? "");
      let to = next(buttons, event.target, event.key);
      if (isRemoval(event.key) && entry) {
        to = buttons[at + 1] ?? buttons[at - 1];
        const { request } = to?.dataset ?? {};
        take([entry], "entry");
        to = request ? buttonFor(parent, request) : part("undo");
      }
      if (!to) return;
      reachable(parent, to);
      to.focus();
      event.preventDefault();
    });
  }

  app.history = {
    isKept: () => Boolean(find(inGallery() ?? "")?.favourite),
    toggleKept: () => toggle(inGallery() ?? ""),
    remove: removePicture,
  };
  app.store.subscribe(({ running }, before) => {
    if (running !== before.running) describe();
  });
  addEventListener("storage", show);
  show();
};

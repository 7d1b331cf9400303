// The bar of a picture's actions: beside the opened one, over a tile's lower edge while the pointer is there,
// and as a list by a long press or the menu key.
import { forEachApp, make, swallow } from "./app.js";
import { editPicture } from "./drop.js";

const LONG_MS = 500; // after which a press is long
const STILL = 10; // pixels that a finger may move in a long press
const NARROW = 236; // pixels of a tile in which the five buttons have no room
const DRAWS = ["finish", "vary", "new_seed", "larger"];
const ICONS = {
  download: "M10 3v10m-4-4 4 4 4-4M3.5 16.5h13",
  edit: "M13.5 3.5l3 3L7 16l-4 1 1-4z",
  vary: "M3 7h10v10H3zM7 7V3h10v10h-4",
  use: "M3 6h7m5 0h2M3 14h2m5 0h7M12.5 3.5v5M7.5 11.5v5",
  more: "M4.5 10h.01M10 10h.01M15.5 10h.01",
  finish: "M6 4l10 6-10 6z",
  reveal: "M2 10s3-5 8-5 8 5 8 5-3 5-8 5-8-5-8-5zM10 8a2 2 0 1 0 0 4 2 2 0 0 0 0-4",
};

const icon = (name) => {
  const [svg, path] = ["svg", "path"].map((tag) => document.createElementNS("http://www.w3.org/2000/svg", tag));
  svg.setAttribute("viewBox", "0 0 20 20");
  svg.setAttribute("aria-hidden", "true");
  path.setAttribute("d", ICONS[name]);
  svg.append(path);
  return svg;
};

// The article with the texts of the picture in a file.
export const pictureAt = (app, address) => {
  const path = decodeURI(address ?? "");
  return app.all("#picture-texts article").find(({ dataset }) => path.endsWith(`/${dataset.key}`));
};
const addressOf = (app, { dataset: { key } }) => (
  app.all("#gallery img").map(({ src }) => src).find((src) => decodeURI(src).endsWith(`/${key}`)));
const is = ({ dataset: { kind } }, word) => kind.split(" ").includes(word);
const fileOf = async (app, picture) => {
  const blob = await (await fetch(addressOf(app, picture))).blob();
  return new File([blob], picture.dataset.key.split("/").at(-1), { type: blob.type });
};

// --- the lists of actions; an action has a name, and calls, leads to an address, or draws ---

const files = (app, picture) => {
  const stem = `pictures/${picture.dataset.key.replace(/\.png$/, "")}`;
  return ["png", "jpg", "webp"].map((kind) => ({ name: kind, href: new URL(`${stem}.${kind}`, app.home).href }));
};
const copyPicture = async (app, picture) => {
  const file = fileOf(app, picture);
  await navigator.clipboard.write([new ClipboardItem({ "image/png": file })]);
};
const downloads = (app, picture) => [
  ...files(app, picture),
  ...(window.ClipboardItem ? [{ name: "copy", call: () => copyPicture(app, picture), copies: true }] : []),
  ...(navigator.canShare?.({ files: [new File([""], "a.png", { type: "image/png" })] })
    ? [{ name: "share", call: async () => navigator.share({ files: [await fileOf(app, picture)] }) }]
    : []),
];
const variations = (app, picture) => ["subtle", "strong"].map((name) => (
  { name, call: () => app.act("vary", picture, { how: name }) }));
const act = (app, picture, name) => ({ name, call: () => app.act(name, picture) });
const edit = (app, picture) => (
  { name: "edit", call: () => editPicture(app, addressOf(app, picture)) });
const others = (app, picture) => [
  ...(is(picture, "unfinished") ? [] : [act(app, picture, "new_seed")]),
  ...(is(picture, "enlargeable") ? [act(app, picture, "larger")] : []),
  ...(is(picture, "original") ? [{ name: "blur", call: () => app.act("exchange", picture) }] : []),
  { name: "link", link: picture.dataset.link, copies: true },
  { name: app.history.isKept() ? "unkeep" : "keep", call: () => app.history.toggleKept() },
  { name: "delete", call: () => app.history.remove(picture.dataset.key) },
];
const reveal = (app, picture) => ({ name: "reveal", call: () => app.act("exchange", picture) });

// What a bar shows: actions, and lists that open.
const entries = (app, picture) => {
  const use = act(app, picture, "use");
  const more = { name: "more", list: () => others(app, picture) };
  if (is(picture, "unfinished")) return [act(app, picture, "finish"), use, more];
  return [
    ...(is(picture, "blurred") ? [reveal(app, picture)] : []),
    { name: "download", list: () => downloads(app, picture) },
    edit(app, picture),
    { name: "vary", list: () => variations(app, picture) },
    use,
    more,
  ];
};

// --- their elements ---

const close = (part) => part.closest("[popover]")?.hidePopover();
const itemOf = (app, { name, group, href, link, call, copies }) => {
  const texts = app.data.actions;
  const text = group ? `${texts[group]}: ${texts[name]}` : texts[name];
  if (href) {
    const item = make("a", { href, download: true, role: "menuitem" }, text);
    item.addEventListener("click", () => close(item));
    return item;
  }
  const item = make("button", { type: "button", role: "menuitem", "data-act": name }, text);
  if (link) item.dataset.link = link;
  if (copies) item.dataset.copied = texts.copied;
  item.addEventListener("click", async () => {
    if (!copies) close(item);
    try {
      await call?.();
    } catch (error) {
      if (error.name !== "AbortError") throw error; // the visitor changed their mind
    }
    if (!copies) return;
    if (!link) item.textContent = texts.copied;
    setTimeout(() => close(item), 900);
  });
  return item;
};
const menuOf = (app, name, list) => {
  const menu = make("div", { popover: "auto", role: "menu", class: "menu", "aria-label": app.data.actions[name] });
  menu.addEventListener("beforetoggle", ({ newState }) => {
    if (newState !== "open") return;
    menu.replaceChildren(...list().map((entry) => itemOf(app, entry)));
    enable(app);
    menu.firstElementChild.autofocus = true;
  });
  menu.addEventListener("keydown", (event) => {
    const steps = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!steps) return;
    const items = [...menu.children];
    items.at((items.indexOf(document.activeElement) + steps) % items.length).focus();
    swallow(event);
  });
  return menu;
};
const buttonOf = (app, { name, list, call }) => {
  const text = app.data.actions[name];
  const button = make("button", { type: "button", "data-act": name, title: text }, icon(name), make("span", {}, text));
  if (!list) {
    button.addEventListener("click", (event) => call(event));
    return [button];
  }
  const menu = menuOf(app, name, list);
  button.popoverTargetElement = menu;
  button.ariaHasPopup = "menu";
  return [button, menu];
};
const fill = (app, bar, picture) => {
  bar.replaceChildren(...(picture ? entries(app, picture).flatMap((entry) => buttonOf(app, entry)) : []));
  enable(app);
};
const enable = (app) => {
  const { running } = app.store.state;
  for (const name of DRAWS) for (const button of app.all(`[data-act=${name}]`)) button.disabled = running;
};

// --- over a tile ---

const watchTiles = (app) => {
  const stage = app.find("#stage");
  const bar = stage.appendChild(make("div", { id: "tile-bar", class: "bar", hidden: true }));
  const menu = stage.appendChild(menuOf(app, "more", () => all()));
  let tile = null;
  const picture = () => tile && pictureAt(app, tile.querySelector("img")?.src);
  // Entries of a list are named with it.
  const all = () => entries(app, picture()).flatMap(({ name: group, list, ...entry }) => (
    list?.().map((item) => (item.href || group === "vary" ? { ...item, group } : item)) ?? [{ ...entry, name: group }]));
  const hide = () => {
    tile = null;
    bar.hidden = true;
  };
  const show = (other) => {
    if (tile === other && !bar.hidden) return;
    tile = other;
    const shown = picture();
    if (!shown) return hide();
    const [around, { left, bottom, width }] = [stage, tile].map((part) => part.getBoundingClientRect());
    Object.assign(bar.style, { left: `${left - around.left}px`, top: `${bottom - around.top}px`, width: `${width}px` });
    bar.toggleAttribute("data-narrow", width < NARROW);
    fill(app, bar, shown);
    bar.hidden = false;
  };
  app.page.addEventListener("pointerover", ({ target, pointerType }) => {
    if (pointerType !== "mouse" || bar.querySelector(":popover-open")) return;
    const over = target.closest("#gallery .thumbnail-lg");
    if (over) show(over);
    else if (!target.closest("#tile-bar")) hide();
  });
  app.page.addEventListener("pointerleave", () => { if (!bar.querySelector(":popover-open")) hide(); });

  // A long press, and the key that opens a menu.
  const open = (pressed) => {
    tile = pressed;
    if (picture()) menu.showPopover({ source: pressed });
  };
  let due = 0;
  let isLong = false;
  let held = null; // the tile
  const at = { x: 0, y: 0 };
  stage.addEventListener("pointerdown", ({ target, pointerType, x, y }) => {
    const pressed = target.closest("#gallery .thumbnail-lg");
    isLong = false;
    if (!pressed || pointerType === "mouse") return;
    Object.assign(at, { x, y });
    due = setTimeout(() => {
      isLong = true;
      held = pressed;
      open(pressed);
    }, LONG_MS);
  });
  const isMoved = ({ x, y }) => Math.hypot(x - at.x, y - at.y) > STILL;
  stage.addEventListener("pointermove", (event) => { if (isMoved(event)) clearTimeout(due); });
  for (const end of ["pointerup", "pointercancel"]) stage.addEventListener(end, () => clearTimeout(due));
  // Browsers take the lifted finger for a press beside the list, and close it.
  stage.addEventListener("pointerup", () => {
    const options = { once: true, signal: AbortSignal.timeout(300) };
    if (isLong) menu.addEventListener("toggle", () => open(held), options);
  });
  stage.addEventListener("click", (event) => {
    if (!isLong || !event.target.closest("#gallery .thumbnail-lg")) return;
    isLong = false;
    swallow(event);
  }, true);
  stage.addEventListener("contextmenu", (event) => {
    const pressed = event.target.closest("#gallery .thumbnail-lg");
    if (pressed && event.pointerType === "touch") event.preventDefault(); // the list is open by now
  });
  stage.addEventListener("keydown", (event) => {
    const { key, shiftKey, target } = event;
    if (!target.matches("#gallery .thumbnail-lg") || !(key === "ContextMenu" || (shiftKey && key === "F10"))) return;
    swallow(event);
    open(target);
  });
  app.watch("#gallery", () => { if (tile && !tile.isConnected) hide(); });
};

forEachApp((app) => {
  app.whenOpen(() => watchTiles(app));
  app.store.subscribe(({ running }, before) => {
    if (running !== before.running) enable(app);
  });
});

// The bar beside the opened picture, mounted with the first pictures; it also tells the server what is done.
export const begin = (app, { element, trigger }) => {
  const bar = element.querySelector("[data-bar]");
  app.showBar = (picture) => fill(app, bar, picture);
  app.act = (name, picture, details = {}) => {
    if (DRAWS.includes(name)) {
      if (app.page.dataset.uploading !== undefined) return; // for the press before
      const press = { id: name, at: performance.now(), detail: 0 };
      if (app.store.dispatch("pressed", press).isIgnored) return;
      app.asking = name;
    }
    const { draft: fields } = app.page.relay.kept;
    if (name === "use") app.store.dispatch("taking", { fields });
    app.acted = picture.dataset;
    trigger(name, { key: picture.dataset.key, ...details });
  };
};

// The picture to start from: how far it is redrawn, its marked part, its new sides, and its files.
import { appOf, make, reveal } from "../app.js";
import { fetchOnceBack } from "../../gradio_compat/network.js";
import { blank, hasMask, partOf, read, sizeOf, toImage, toMask, toText, toThumbnail } from "./canvas.js";
import { watchOpened } from "./compare.js";
import { SIDES, makeEditor } from "./editor.js";
import { makeFollow } from "./follow.js";
import { Marks } from "./marks.js";

const MOST_HELD = 12; // pictures of earlier requests
const SETTLED_MS = 300; // after the last change, the picture is kept and its files are made
const SKETCHED = 1024; // pixels of a sketch's longer side
const LEAST_CUT = 0.01; // of the picture that is cut off

// Returns the tools of an app's page, whose texts are at `place`: `use` a picture, `restore` the one that
// the tab kept, and `uploaded` for a request.
export const begin = async (app, place) => {
  const { page } = app;
  const texts = JSON.parse(place.dataset.texts);
  const { limits } = texts;
  const held = new Map(); // pictures of requests, as they were sent, by their ids
  // { picture, marks, sides }; `sent` once it was sent without changes since, `text` once it was kept;
  // `image` and `mask` are promises of its files; `former` is the strength before it was followed;
  // `isSketch` if its marks are a drawing, and no mask
  let state = null;

  const styles = make("link", { rel: "stylesheet", href: new URL("tools.css", import.meta.url).href });
  await new Promise((done) => {
    for (const end of ["load", "error"]) styles.addEventListener(end, done);
    place.before(styles);
  });

  // --- settings that the page keeps with its others ---
  const fieldOf = (name) => page.querySelector(`#start-${name}-value [data-field]`);
  const send = (name, type, detail) => (
    fieldOf(name)?.dispatchEvent(new CustomEvent(type, { bubbles: true, detail })));
  const get = (name) => {
    const asked = {};
    send(name, "asked", asked);
    return asked.value ?? "";
  };
  const set = (name, value) => send(name, "given", String(value));
  const ownStrength = () => (state && hasMask(state) ? limits.masked_strength : limits.strength);
  const strength = () => Number(get("strength")) || ownStrength();

  // --- what the stage shows ---
  const setSide = (name, pixels) => {
    const added = Math.min(Math.max(Math.round(pixels) || 0, 0), limits.added);
    if (added === state.sides[name]) return;
    // The whole would be cut to the size that the model draws, often at the new sides.
    const isFirst = !Object.values(state.sides).some(Boolean);
    if (isFirst && get("padding") === "") set("padding", limits.usual_padding);
    state.sides[name] = added;
    delete state.image;
    changed();
  };
  const editor = makeEditor(app, texts, { changed: () => changed(), setSide });
  const find = (selector) => editor.element.querySelector(selector);
  const [slider, only, padding] = [
    "#start-strength input", ".masked [type=checkbox]", "#start-padding input"].map(find);

  const radios = () => [...page.querySelectorAll("#size input")];
  const chosenSize = () => radios().find(({ checked }) => checked)?.value ?? "";
  const sizes = () => {
    const chosen = chosenSize();
    const all = [limits.size, ...radios().map(({ value }) => value).filter(Boolean)];
    return (chosen ? [chosen] : all).map((size) => size.split("x").map(Number));
  };
  // The part that is not cut off; null for all of it.
  const keptPart = () => {
    if (hasMask(state) && get("padding") !== "") return null;
    const [width, height] = sizeOf(state);
    const part = partOf([width, height], sizes());
    return Math.max(width - part[2], height - part[3]) < LEAST_CUT * width ? null : part;
  };
  const needsMask = Boolean(app.find("#header [data-masks]"));
  const showNote = (part) => {
    const notes = [];
    if (state.isSketch) notes.push(texts.outline);
    else if (!hasMask(state)) notes.push(texts.hint, needsMask ? "" : texts.unmarked);
    else if (get("strength") === "") notes.push(texts.redrawn);
    if (part) notes.push(texts.cut);
    find(".note").textContent = notes.join(" ");
  };
  const showSettings = () => {
    slider.value = Math.round(strength() * 100);
    find("output").textContent = `${slider.value} %`;
    slider.setAttribute("aria-valuetext", `${slider.value} %`);
    find(".masked").hidden = !hasMask(state);
    only.checked = get("padding") !== "";
    find("#start-padding").hidden = !only.checked;
    if (document.activeElement !== padding) padding.value = get("padding") || limits.usual_padding;
    for (const name of SIDES) {
      const input = find(`.sides [name=${name}]`);
      if (document.activeElement !== input) input.value = state.sides[name];
    }
  };
  // Pictures that follow this one are drawn from scratch, unless the visitor moves the strength.
  const unfollow = (former = "") => {
    set("controls", "");
    if (strength() === 1) set("strength", former);
  };
  const setFollowed = (text) => {
    if (text === "") {
      unfollow(state.former);
    } else {
      const isFirst = get("controls") === "";
      if (isFirst) state.former = get("strength");
      set("controls", text);
      if (isFirst) set("strength", 1);
    }
    settle();
  };
  const follow = makeFollow(app, find("#start-strength"), {
    get: () => get("controls"),
    set: setFollowed,
    about: () => ({
      file: () => (state.image ??= toImage(state)),
      size: chosenSize(),
      model: page.relay.kept.draft?.model ?? "",
      depends: [state.picture, JSON.stringify(state.sides), chosenSize()],
      isRedrawn: !hasMask(state) && strength() === 1,
      isSketch: state.isSketch,
    }),
  });
  // Settings that were found in the picture: the panel that has them all is closed.
  const settingsOfPicture = () => page.querySelector("#restored [data-of-picture]");
  const showOffer = () => {
    const settings = settingsOfPicture();
    find(".offer").hidden = !settings;
    find(".offer p").textContent = settings?.querySelector("dd")?.textContent ?? "";
  };

  // --- its button under the prompt ---
  const chip = page.querySelector("#chip-picture");
  const ask = page.querySelector("#ask");
  let thumbnail = "";
  const showThumbnail = async () => {
    const now = state;
    const address = now ? URL.createObjectURL(await toThumbnail(editor.whole, now)) : "";
    URL.revokeObjectURL(now === state ? thumbnail : address);
    if (now !== state) return;
    thumbnail = address;
    chip.style.setProperty("--thumbnail", `url("${address}")`);
  };
  const showChip = (isNew) => {
    ask.toggleAttribute("data-start", Boolean(state));
    ask.toggleAttribute("data-masked", Boolean(state && hasMask(state)));
    chip.title = state ? [`${texts.strength} ${slider.value} %`, follow.label()].filter(Boolean).join(" · ") : "";
    page.querySelector("#free-picture").ariaLabel = texts.remove_picture;
    app.store.dispatch("start", { hasStart: Boolean(state), isNew });
    chip.ariaPressed = state && String(app.store.state.editing);
  };
  const update = (isNew = false) => {
    if (state) {
      const part = keptPart();
      editor.show(state, part);
      showNote(part);
      showSettings();
      follow.show();
    }
    showChip(isNew);
  };

  // --- what is done once nothing has changed for a moment ---
  // The tab alone keeps the picture; a reload finds it again.
  const keepInTab = async () => {
    const now = state;
    if (now) now.text ??= await toText(now.picture);
    if (now !== state) return;
    const { text, marks, sides, isSketch, sent, former } = now ?? {};
    const { editing } = app.store.state;
    const kept = { text, steps: marks?.steps, sides, isSketch, sent, former, editing };
    page.relay.keep("started", now && JSON.stringify(kept));
  };
  const files = (of) => {
    of.image ??= toImage(of);
    of.mask ??= toMask(of);
    return Promise.all([of.image, of.mask]);
  };
  let due = 0;
  const settle = () => {
    clearTimeout(due);
    due = setTimeout(() => {
      keepInTab();
      (window.requestIdleCallback ?? setTimeout)(() => { if (state) files(state); });
    }, state ? SETTLED_MS : 0);
  };
  const changed = (isNew = false) => {
    delete state?.sent;
    delete state?.mask;
    if (state?.isSketch) delete state.image;
    update(isNew);
    showThumbnail();
    settle();
  };
  const begun = ({ picture, steps = [], sides = { top: 0, right: 0, bottom: 0, left: 0 }, isSketch }) => ({
    picture,
    marks: new Marks(picture.width, picture.height, [...steps], isSketch ? "black" : undefined),
    sides: { ...sides },
    isSketch,
  });

  // --- what the visitor does ---
  const refuse = (detail) => app.send("#restored .prose", "refused", detail);
  const use = async (file) => {
    const picture = await read(file, limits.opened).catch(() => undefined);
    if (picture) {
      closePanel();
      state = begun({ picture });
      changed(true);
    } else {
      refuse(picture === null || file.size > limits.bytes ? "too large" : "unreadable");
    }
  };
  // Begins a drawing on white, which pictures follow as the text of a control says.
  const sketch = (control) => {
    const [width, height] = sizes()[0];
    const scale = SKETCHED / Math.max(width, height);
    closePanel();
    state = begun({ picture: blank(Math.round(scale * width), Math.round(scale * height)), isSketch: true });
    set("controls", ""); // a link may have brought one
    setFollowed(control);
    changed(true);
  };
  // What Undo gives back: the picture before the last exchange, together with the fields `before` it.
  let exchanged = null;
  const exchange = (next) => {
    const { before, editing } = app.store.state;
    exchanged = { before, editing, state, strength: get("strength"), controls: get("controls") };
    state = next;
    changed();
  };
  const undo = () => {
    if (exchanged?.before !== app.store.state.before) return;
    const { editing } = exchanged;
    ({ state } = exchanged);
    for (const name of ["controls", "strength"]) set(name, exchanged[name]);
    exchanged = null;
    changed(editing);
  };
  const free = () => {
    exchange(null);
    settingsOfPicture()?.dispatchEvent(new CustomEvent("removed", { bubbles: true }));
    chip.focus({ preventScroll: true });
  };
  const remove = () => {
    app.store.dispatch("taking", { fields: {} });
    const { former } = state;
    free();
    if (get("controls")) unfollow(former);
    const line = { kind: "taken", text: texts.removed };
    if (!app.store.state.running) app.store.dispatch("told", { line });
  };
  const reuse = ({ start }) => {
    if (!held.has(start)) return;
    exchange(begun(held.get(start).again));
  };
  page.addEventListener("click", ({ target }) => {
    if (target.closest("#free-picture, #edit [data-do=remove]")) remove();
    // A picture began with words or with another picture, never with itself.
    if (state && target.closest("#restore-use") && settingsOfPicture()) free();
    if (target.closest("[data-act=use]")) reuse(app.acted);
  });
  // Captured before the fields are given back, and `before` with them.
  page.addEventListener("click", ({ target }) => {
    if (target.closest("#status [data-do=undo]")) undo();
  }, true);
  const closePanel = () => app.find("#panel-picture:popover-open")?.hidePopover();
  // With a picture its button shows and hides it, and does not open the panel.
  page.addEventListener("click", (event) => {
    if (!state || !event.target.closest("#chip-picture")) return;
    event.preventDefault();
    closePanel();
    app.store.dispatch("edit", { editing: !app.store.state.editing });
  }, true);
  app.store.subscribe(({ editing }, before) => {
    if (editing === before.editing) return;
    const hadFocus = editor.element.contains(document.activeElement);
    editor.element.hidden = !editing;
    chip.ariaPressed = state && String(editing);
    if (editing) {
      reveal(editor.element);
      follow.load();
    }
    // What was pressed may be gone with the gallery.
    if (editing && !document.activeElement.checkVisibility()) editor.element.focus({ preventScroll: true });
    if (!editing && hadFocus) chip.focus({ preventScroll: true });
    if (state) settle();
  });
  slider.addEventListener("input", () => set("strength", slider.value / 100));
  only.addEventListener("change", () => set("padding", only.checked ? padding.value : ""));
  padding.addEventListener("input", () => set("padding", padding.value));
  page.addEventListener("start-field", () => update());
  page.querySelector("#size")?.addEventListener("change", () => requestAnimationFrame(() => update()));
  find(".by-numbers").addEventListener("toggle", ({ target }) => reveal(target), true);
  find(".sides").addEventListener("input", ({ target }) => setSide(target.name, Number(target.value)));
  app.watch("#restored", showOffer);

  // --- what a request gets ---
  const hold = async (now, id = Math.random().toString(36).slice(2)) => {
    const { picture, marks, sides, isSketch } = now;
    const again = { picture, steps: [...marks.steps], sides: { ...sides }, isSketch };
    const own = ownStrength();
    const made = files(now);
    const { mask: promised } = now;
    const [image, mask] = await made;
    held.set(id, { id, image, mask, strength: own, again });
    if (now.mask === promised) now.sent = id; // nothing has changed meanwhile
    if (held.size > MOST_HELD) held.delete(held.keys().next().value);
    settle();
    return held.get(id);
  };
  const upload = async (blob) => {
    if (!blob) return null;
    const body = new FormData();
    body.append("files", blob, `picture.${blob.type.split("/")[1]}`);
    const address = new URL("gradio_api/upload", app.home);
    const answer = await fetchOnceBack(app, () => fetch(address, { method: "POST", body }));
    if (!answer.ok) throw answer;
    const [path] = await answer.json();
    return { path };
  };
  const uploaded = async (start) => {
    const now = state;
    if (start === undefined ? !now : !held.has(start)) return undefined;
    page.dataset.uploading = "";
    try {
      const { id, image, mask, strength: own } = held.get(start ?? now.sent) ?? await hold(now);
      return { id, image: await upload(image), mask: await upload(mask), strength: own };
    } catch ({ status }) {
      return { failed: status ?? 0 };
    } finally {
      delete page.dataset.uploading;
    }
  };
  const restore = async (kept) => {
    try {
      const { text, sent, former, editing, ...again } = JSON.parse(kept);
      const image = Object.assign(new Image(), { src: text });
      await image.decode();
      const picture = await read(image, limits.opened);
      state = { ...begun({ picture, ...again }), text, former };
      if (sent) await hold(state, sent);
      closePanel(); // it is open from the start if the model needs a picture
      update(editing && !app.store.state.running);
      showThumbnail();
    } catch {
      state = null; // another version of the page may have kept it
      changed();
    }
  };
  // A second press would send the request twice; `bar.js` asks the same of its own.
  for (const press of ["click", "keydown"]) {
    document.addEventListener(press, (event) => {
      const isPress = press === "click"
        ? event.target.closest?.("#generate")
        : event.key === "Enter" && event.target.matches?.("#prompt textarea");
      if (!isPress || appOf(event.target) !== app || page.dataset.uploading === undefined) return;
      event.preventDefault();
      event.stopPropagation();
    }, true);
  }

  watchOpened(page, held, texts);
  return { use, sketch, restore, uploaded };
};

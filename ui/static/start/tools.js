// The picture to start from: its preview, how far it is redrawn, its marked part and its new sides.
import { hasMask, partOf, read, show, toFiles, toText } from "./canvas.js";
import { watchOpened } from "./compare.js";
import { edit } from "./editor.js";
import { make } from "../app.js";
import { Marks } from "./marks.js";

const MOST_HELD = 12; // pictures of earlier requests
const PREVIEW = 700; // pixels of its longer side
const SIDES = ["top", "left", "right", "bottom"];
const GRID = 8; // pixels by which a side is dragged
const KEPT_AFTER_MS = 200; // the last change

const layout = (texts) => {
  const button = (name, text) => make("button", { type: "button", "data-do": name }, text);
  const side = (name) => make("label", {}, `${texts[name]} (px)`, make("input", {
    type: "number", name, min: 0, max: texts.limits.added, step: GRID, value: 0, inputmode: "numeric",
  }));
  return [
    make("div", { class: "preview" },
      make("canvas", { role: "img", "aria-label": texts.name }),
      ...SIDES.map((name) => make("span", { class: `handle ${name}`, "data-side": name }))),
    make("p", { class: "note cut", hidden: true }, texts.cut),
    make("div", { class: "actions" }, button("mark", texts.mark), button("remove", texts.remove)),
    make("label", { id: "start-strength" },
      make("span", {}, texts.strength, " ", make("output")),
      make("input", { type: "range", min: 1, max: 100, step: 1 }),
      make("span", { class: "words" }, make("small", {}, texts.least), make("small", {}, texts.most))),
    make("p", { class: "note redrawn", hidden: true }, texts.redrawn),
    make("div", { class: "masked" },
      make("label", {}, make("input", { type: "checkbox" }), texts.only),
      make("label", { id: "start-padding" }, `${texts.padding} (px)`, make("input", {
        type: "number", min: 0, max: texts.limits.padding, step: 8, inputmode: "numeric",
      }))),
    make("details", {}, make("summary", {}, texts.extend), make("div", { class: "sides" }, ...SIDES.map(side))),
  ];
};

// Returns the tools of an app's page at `place`: `use` a picture, `restore` the one that the tab kept,
// and `uploaded` for a request.
export const begin = async (app, place) => {
  const { page } = app;
  const texts = JSON.parse(place.dataset.texts);
  const { limits } = texts;
  const find = (selector) => place.querySelector(selector);
  const held = new Map(); // pictures of requests, as they were sent, by their ids
  // { picture, marks, sides }; `sent` once it was sent without changes since, `text` once it was kept
  let state = null;

  const styles = make("link", { rel: "stylesheet", href: new URL("tools.css", import.meta.url).href });
  await new Promise((done) => {
    for (const end of ["load", "error"]) styles.addEventListener(end, done);
    place.before(styles);
  });
  place.append(...layout(texts));
  const [slider, only, padding] = [
    "#start-strength input", ".masked [type=checkbox]", "#start-padding input"].map(find);

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

  // --- how it looks ---
  const sizes = () => {
    const radios = [...page.querySelectorAll("#size input")];
    const chosen = radios.find(({ checked }) => checked)?.value;
    const all = [limits.size, ...radios.map(({ value }) => value).filter(Boolean)];
    return (chosen ? [chosen] : all).map((size) => size.split("x").map(Number));
  };
  const showPreview = () => {
    const { width, height } = state.picture;
    const { top, right, bottom, left } = state.sides;
    const whole = [width + left + right, height + top + bottom];
    const isWhole = hasMask(state) && get("padding") !== "";
    const part = isWhole ? null : partOf(whole, sizes());
    show(find(".preview canvas"), state, PREVIEW, part);
    const shares = { left: left / whole[0], right: right / whole[0], top: top / whole[1], bottom: bottom / whole[1] };
    for (const [name, share] of Object.entries(shares)) {
      find(".preview").style.setProperty(`--${name}`, `${share * 100}%`);
    }
    find(".cut").hidden = !part || Math.max(whole[0] - part[2], whole[1] - part[3]) < 0.01 * whole[0];
  };
  const showChip = () => {
    const ask = page.querySelector("#ask");
    const chip = page.querySelector("#chip-picture");
    URL.revokeObjectURL(ask.dataset.thumbnail);
    for (const name of ["start", "thumbnail", "masked"]) delete ask.dataset[name];
    delete chip.dataset.strength;
    app.store.dispatch("start", { hasStart: Boolean(state) });
    if (!state) return;
    ask.dataset.start = "";
    if (hasMask(state)) ask.dataset.masked = "";
    page.querySelector("#free-picture").ariaLabel = texts.remove_picture;
    chip.dataset.strength = `${Math.round(strength() * 100)} %`;
    find(".preview canvas").toBlob((blob) => {
      if (!state) return;
      ask.dataset.thumbnail = URL.createObjectURL(blob);
      chip.style.setProperty("--thumbnail", `url("${ask.dataset.thumbnail}")`);
    });
  };
  const update = () => {
    place.hidden = !state;
    if (state) {
      slider.value = Math.round(strength() * 100);
      find("output").textContent = `${slider.value} %`;
      slider.setAttribute("aria-valuetext", `${slider.value} %`);
      find(".masked").hidden = !hasMask(state);
      find(".redrawn").hidden = !hasMask(state) || get("strength") !== "";
      only.checked = get("padding") !== "";
      find("#start-padding").hidden = !only.checked;
      if (document.activeElement !== padding) padding.value = get("padding") || limits.usual_padding;
      for (const name of SIDES) {
        const input = find(`.sides [name=${name}]`);
        if (document.activeElement !== input) input.value = state.sides[name];
      }
      showPreview();
    }
    showChip();
  };
  // The tab alone keeps the picture; a reload finds it again.
  let due = 0;
  const keepInTab = () => {
    clearTimeout(due);
    due = setTimeout(async () => {
      const now = state;
      if (now) now.text ??= await toText(now.picture);
      if (now !== state) return;
      const { text, marks, sides, sent } = now ?? {};
      page.relay.keep("started", now && JSON.stringify({ text, steps: marks.steps, sides, sent }));
    }, state ? KEPT_AFTER_MS : 0);
  };
  const changed = () => {
    delete state?.sent;
    update();
    keepInTab();
  };
  const begun = (picture, steps = [], sides = { top: 0, right: 0, bottom: 0, left: 0 }) => ({
    picture, marks: new Marks(picture.width, picture.height, [...steps]), sides: { ...sides },
  });

  // --- what the visitor does ---
  const settingsOfPicture = () => page.querySelector("#restored [data-of-picture]");
  const refuse = (detail) => page.querySelector("#restored .prose")?.dispatchEvent(
    new CustomEvent("refused", { bubbles: true, detail }));
  const use = async (file) => {
    const picture = await read(file, limits.opened).catch(() => undefined);
    if (picture) {
      state = begun(picture);
      changed();
    } else {
      refuse(picture === null || file.size > limits.bytes ? "too large" : "unreadable");
    }
  };
  const remove = () => {
    state = null;
    changed();
    settingsOfPicture()?.dispatchEvent(new CustomEvent("removed", { bubbles: true }));
    page.querySelector("#chip-picture").focus();
  };
  const setSide = (name, pixels) => {
    // The whole would be cut to the size that the model draws, often at the new sides.
    const isFirst = !Object.values(state.sides).some(Boolean);
    if (isFirst && pixels > 0 && get("padding") === "") set("padding", limits.usual_padding);
    state.sides[name] = Math.min(Math.max(Math.round(pixels) || 0, 0), limits.added);
    changed();
  };
  page.addEventListener("click", ({ target }) => {
    if (target.closest("#free-picture, #start [data-do=remove]")) remove();
    // A picture began with words or with another picture, never with itself.
    if (state && target.closest("#restore-use") && settingsOfPicture()) remove();
    if (target.closest("#start [data-do=mark]")) edit(place, state, texts, changed);
    const { start } = page.querySelector("#picked [data-place]")?.dataset ?? {};
    if (!target.closest("#reuse") || !held.has(start)) return;
    const { picture, steps, sides } = held.get(start).again;
    state = begun(picture, steps, sides);
    changed();
  });
  slider.addEventListener("input", () => set("strength", slider.value / 100));
  only.addEventListener("change", () => set("padding", only.checked ? padding.value : ""));
  padding.addEventListener("input", () => set("padding", padding.value));
  page.addEventListener("start-field", update);
  page.querySelector("#size")?.addEventListener("change", () => requestAnimationFrame(update));
  find("details").addEventListener("toggle", ({ target }) => target.scrollIntoView({ block: "nearest" }));
  find(".sides").addEventListener("input", ({ target }) => setSide(target.name, Number(target.value)));
  find(".preview").addEventListener("pointerdown", (event) => {
    const { side } = event.target.dataset;
    if (!side) return;
    event.preventDefault();
    event.target.setPointerCapture(event.pointerId);
    const canvas = find(".preview canvas").getBoundingClientRect();
    const scale = (state.picture.width + state.sides.left + state.sides.right) / canvas.width;
    const before = state.sides[side];
    const moved = ({ clientX, clientY }) => {
      const [x, y] = [(clientX - event.clientX) * scale, (clientY - event.clientY) * scale];
      const out = { left: -x, right: x, top: -y, bottom: y }[side];
      setSide(side, Math.round((before + out) / GRID) * GRID);
    };
    event.target.addEventListener("pointermove", moved);
    const end = () => event.target.removeEventListener("pointermove", moved);
    event.target.addEventListener("lostpointercapture", end, { once: true });
  });

  // --- what a request gets ---
  const hold = async (id) => {
    if (!state.sent) {
      const sent = { id: id ?? Math.random().toString(36).slice(2), ...await toFiles(state) };
      const { picture, marks, sides } = state;
      const again = { picture, steps: [...marks.steps], sides: { ...sides } };
      held.set(sent.id, { ...sent, strength: ownStrength(), again });
      state.sent = sent.id;
      if (held.size > MOST_HELD) held.delete(held.keys().next().value);
      keepInTab();
    }
    return held.get(state.sent);
  };
  const upload = async (blob) => {
    if (!blob) return null;
    const body = new FormData();
    body.append("files", blob, `picture.${blob.type.split("/")[1]}`);
    const answer = await fetch(new URL("gradio_api/upload", app.home), { method: "POST", body });
    if (!answer.ok) throw answer;
    const [path] = await answer.json();
    return { path };
  };
  const uploaded = async (start) => {
    const sent = start === undefined ? state && await hold() : held.get(start);
    if (!sent) return undefined;
    page.dataset.uploading = "";
    try {
      const { id, strength: own } = sent;
      return { id, image: await upload(sent.image), mask: await upload(sent.mask), strength: own };
    } catch ({ status }) {
      return { failed: status ?? 0 };
    } finally {
      delete page.dataset.uploading;
    }
  };
  const restore = async (kept) => {
    try {
      const { text, steps, sides, sent } = JSON.parse(kept);
      const image = Object.assign(new Image(), { src: text });
      await image.decode();
      const picture = await read(image, limits.opened);
      state = { ...begun(picture, steps, sides), text };
      if (sent) await hold(sent);
      update();
    } catch {
      state = null; // another version of the page may have kept it
      changed();
    }
  };
  // A second press would send the request twice.
  for (const press of ["click", "keydown"]) {
    document.addEventListener(press, (event) => {
      const isPress = press === "click"
        ? event.target.closest?.("#generate, #new-seed, #variations, #larger, #finish")
        : event.key === "Enter" && event.target.matches?.("#prompt textarea");
      if (!isPress || page.dataset.uploading === undefined) return;
      event.preventDefault();
      event.stopPropagation();
    }, true);
  }

  watchOpened(page, held, texts);
  return { use, restore, uploaded };
};

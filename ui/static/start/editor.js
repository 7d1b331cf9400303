// The picture to start from on the stage, with the tools for marking a part of it and for extending it.
import { appOf, make } from "../app.js";
import { show as showPicture, sizeOf } from "./canvas.js";

const STEPS = 30; // of the brush's size
const STEPS_OF_KEY = 2;
const PEN = 4; // the brush's size for a sketch
const GRID = 8; // pixels by which a side is dragged
const ERASER_OF_PEN = 32; // its bit in `buttons`
export const SIDES = ["top", "left", "right", "bottom"];

const tool = (name, text, keys = "") => make("button", {
  type: "button", "data-do": name, "aria-label": text, title: keys ? `${text} (${keys})` : text,
});
const button = (name, text) => make("button", { type: "button", "data-do": name }, text);
const number = (name, text, most, step = 1) => make("label", {}, text, make("input", {
  type: "number", name, min: 0, max: most, step, value: 0, inputmode: "numeric",
}));
const folded = (name, text, ...fields) => make("details", { class: name },
  make("summary", {}, `${text} (px)`), make("div", { class: "numbers" }, ...fields));

const layout = (texts) => make("section", { id: "edit", "aria-label": texts.name, tabindex: -1, hidden: true },
  make("div", { class: "tools", role: "group", "aria-label": texts.tools },
    tool("draw", texts.draw), tool("erase", texts.erase),
    make("input", {
      class: "brush", type: "range", min: 1, max: STEPS, value: 9,
      "aria-label": texts.brush, title: `${texts.brush} ([ ])`,
    }),
    tool("undo", texts.undo, "Ctrl+Z"), tool("clear", texts.clear), tool("invert", texts.invert),
    tool("remove", texts.remove_picture), tool("done", texts.done, "Esc")),
  make("div", { class: "sheet" },
    make("div", { class: "layers" },
      make("canvas", { role: "img", "aria-label": texts.name }),
      make("div", { class: "kept" }), make("span", { class: "ring", hidden: true })),
    ...SIDES.map((name) => (
      make("span", { class: `handle ${name}`, "data-side": name, title: texts.extend })))),
  make("div", { class: "offer", role: "status", hidden: true },
    make("p"), button("restore", texts.restore)),
  make("p", { class: "note" }),
  make("label", { id: "start-strength" },
    make("small", {}, texts.least),
    make("span", {}, texts.strength, " ", make("output")),
    make("small", {}, texts.most),
    make("input", { type: "range", min: 1, max: 100, step: 1, "aria-label": texts.strength })),
  make("div", { class: "masked" },
    make("label", {}, make("input", { type: "checkbox" }), texts.only),
    make("label", { id: "start-padding" }, `${texts.padding} (px)`, make("input", {
      type: "number", min: 0, max: texts.limits.padding, step: 8, inputmode: "numeric",
    }))),
  make("div", { class: "by-numbers" },
    folded("sides", texts.extend, ...SIDES.map((name) => (
      number(name, texts[name], texts.limits.added, GRID)))),
    folded("box", texts.numbers, number("x", texts.left), number("y", texts.top),
      number("wide", texts.width), number("high", texts.height), button("add", texts.add))));

const isText = (part) => (
  part.matches?.("textarea, [contenteditable], input:not([type=range], [type=checkbox], [type=radio])"));

// Returns the element of an app's stage, which is hidden, and the function that shows a picture in it.
// `changed` is called after each change of the marks, `setSide` with a side that is dragged and its pixels.
export const makeEditor = (app, texts, { changed, setSide }) => {
  const element = app.find("#stage").appendChild(layout(texts));
  const find = (selector) => element.querySelector(selector);
  const [sheet, layers, ring, brush, whole] = [".sheet", ".layers", ".ring", ".brush", "canvas"].map(find);
  let state = null;
  let shown = ""; // the sides of the picture that is shown
  let erases = false;
  let drawing = null; // the pointer that draws; a second finger draws nothing

  // --- what is shown ---
  const place = (part, [x, y, width, height]) => {
    const [wide, high] = sizeOf(state);
    const shares = { left: x / wide, top: y / high, width: width / wide, height: height / high };
    for (const [name, share] of Object.entries(shares)) part.style[name] = `${100 * share}%`;
  };
  const suggestBox = ({ width, height }) => {
    const values = { x: width / 4, y: height / 4, wide: width / 2, high: height / 2 };
    for (const input of element.querySelectorAll(".box input")) {
      input.max = ["x", "wide"].includes(input.name) ? width : height;
      input.value = Math.round(values[input.name]);
    }
  };
  // Shows the picture, shaded outside the `part` that is drawn, if that is given.
  const show = (next, part) => {
    const { picture, marks, sides } = next;
    const isOther = picture !== state?.picture;
    if (marks !== state?.marks) {
      drawing = null;
      state?.marks.canvas.remove();
      whole.after(marks.canvas);
    }
    state = next;
    if (isOther) suggestBox(picture);
    if (isOther && state.isSketch) brush.value = PEN;
    element.toggleAttribute("data-paper", Boolean(state.isSketch));
    if (isOther || shown !== JSON.stringify(sides)) {
      const [width, height] = sizeOf(state);
      sheet.style.setProperty("--ratio", width / height);
      showPicture(whole, state);
      shown = JSON.stringify(sides);
    }
    place(marks.canvas, [sides.left, sides.top, picture.width, picture.height]);
    find(".kept").hidden = !part;
    if (part) place(find(".kept"), part);
  };
  const showPressed = () => {
    find("[data-do=draw]").ariaPressed = String(!erases);
    find("[data-do=erase]").ariaPressed = String(erases);
  };

  // --- the tools ---
  const mark = (change) => () => {
    drawing = null;
    change(state.marks);
    changed();
  };
  const choose = (isEraser) => () => {
    erases = isEraser;
    showPressed();
  };
  const box = () => [...element.querySelectorAll(".box input")].map(({ value }) => Number(value) || 0);
  const actions = {
    draw: choose(false),
    erase: choose(true),
    undo: mark((marks) => marks.undo()),
    clear: mark((marks) => marks.add({ clears: true })),
    invert: mark((marks) => marks.add({ inverts: true })),
    add: mark((marks) => marks.add({ box: box(), erases })),
    restore: () => app.find("#restore-use").click(),
    done: () => app.store.dispatch("edit", { editing: false }),
  };
  element.addEventListener("click", ({ target }) => actions[target.closest("[data-do]")?.dataset.do]?.());

  // --- the brush ---
  const size = () => {
    const { width, height } = state.picture;
    return Math.max(2, (Number(brush.value) / STEPS) ** 1.5 * Math.min(width, height) / 2);
  };
  const scale = () => state.picture.width / state.marks.canvas.getBoundingClientRect().width;
  const at = ({ clientX, clientY }) => {
    const { left, top } = state.marks.canvas.getBoundingClientRect();
    return [clientX - left, clientY - top].map((pixels) => Math.round(pixels * scale()));
  };
  const sizeRing = () => {
    const across = `${size() / scale()}px`;
    Object.assign(ring.style, { width: across, height: across });
  };
  const showRing = (event) => {
    ring.hidden = event.pointerType === "touch" || event.type === "pointerleave";
    if (ring.hidden) return;
    const { left, top } = layers.getBoundingClientRect();
    ring.style.translate = `calc(${event.clientX - left}px - 50%) calc(${event.clientY - top}px - 50%)`;
    sizeRing();
  };
  layers.addEventListener("pointerdown", (event) => {
    if (drawing !== null || event.button > 0 && event.buttons !== ERASER_OF_PEN) return;
    event.preventDefault();
    drawing = event.pointerId;
    layers.setPointerCapture(drawing);
    state.marks.add({ line: [at(event)], size: size(), erases: erases || event.buttons === ERASER_OF_PEN });
  });
  layers.addEventListener("pointermove", (event) => {
    showRing(event);
    if (event.pointerId !== drawing) return;
    const between = event.getCoalescedEvents?.() ?? [];
    state.marks.extend((between.length ? between : [event]).map(at));
  });
  layers.addEventListener("pointerup", ({ pointerId }) => {
    if (pointerId !== drawing) return;
    drawing = null;
    changed();
  });
  // Two fingers magnify the page, or move it: the first one has drawn nothing.
  layers.addEventListener("pointercancel", ({ pointerId }) => {
    if (pointerId === drawing) actions.undo();
  });
  layers.addEventListener("pointerleave", showRing);
  brush.addEventListener("input", sizeRing);

  // --- the sides ---
  sheet.addEventListener("pointerdown", (event) => {
    const { side } = event.target.dataset;
    if (!side) return;
    event.preventDefault();
    event.target.setPointerCapture(event.pointerId);
    const pixels = scale(); // what is shown becomes smaller as it is extended
    const before = state.sides[side];
    const moved = ({ clientX, clientY }) => {
      const [x, y] = [(clientX - event.clientX) * pixels, (clientY - event.clientY) * pixels];
      const out = { left: -x, right: x, top: -y, bottom: y }[side];
      setSide(side, Math.round((before + out) / GRID) * GRID);
    };
    event.target.addEventListener("pointermove", moved);
    const end = () => event.target.removeEventListener("pointermove", moved);
    event.target.addEventListener("lostpointercapture", end, { once: true });
  });

  // --- keys: wherever nothing is typed ---
  const resize = (steps) => {
    brush.value = Number(brush.value) + steps;
    sizeRing();
  };
  document.addEventListener("keydown", (event) => {
    const { key, target, ctrlKey, metaKey } = event;
    if (element.hidden || appOf(target) !== app || isText(target)) return;
    const act = {
      "[": () => resize(-STEPS_OF_KEY),
      "]": () => resize(STEPS_OF_KEY),
      z: (ctrlKey || metaKey) && actions.undo,
    }[key];
    if (!act) return;
    event.preventDefault();
    act();
  });

  showPressed();
  return { element, show, whole };
};

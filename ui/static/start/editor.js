// The window in which a part of the picture is marked, by mouse, finger or pen, or by numbers.
import { make } from "../app.js";

const STEPS = 30; // of the brush's size
const button = (name, text) => make("button", { type: "button", "data-do": name }, text);
const number = (name, text, value, most) => make("label", {}, text,
  make("input", { type: "number", name, min: 0, max: most, step: 1, value, inputmode: "numeric" }));

const layout = (texts, { width, height }) => make("dialog", { "aria-label": texts.editor },
  make("p", { class: "note" }, texts.marked),
  make("div", { class: "tools", role: "toolbar", "aria-label": texts.editor },
    button("draw", texts.draw), button("erase", texts.erase),
    make("label", { class: "brush" }, texts.brush,
      make("input", { type: "range", min: 1, max: STEPS, value: 9 })),
    button("undo", texts.undo), button("clear", texts.clear), button("invert", texts.invert)),
  make("div", { class: "easel" }, make("div", { class: "sheet" }, make("span", { class: "ring", hidden: true }))),
  make("details", {}, make("summary", {}, texts.numbers),
    make("div", { class: "numbers" },
      number("x", texts.left, Math.round(width / 4), width),
      number("y", texts.top, Math.round(height / 4), height),
      number("wide", texts.width, Math.round(width / 2), width),
      number("high", texts.height, Math.round(height / 2), height),
      button("add", texts.add))),
  make("div", { class: "ends" }, button("cancel", texts.cancel), button("done", texts.done)));

// Shows the window over the page until it is closed. `changed` is called after every change.
export const edit = (place, { picture, marks }, texts, changed) => {
  const dialog = place.appendChild(layout(texts, picture));
  const sheet = dialog.querySelector(".sheet");
  const ring = dialog.querySelector(".ring");
  const brush = dialog.querySelector(".brush input");
  picture.setAttribute("aria-hidden", "true");
  sheet.prepend(picture, marks.canvas);
  sheet.style.setProperty("--ratio", picture.width / picture.height);
  const before = [...marks.steps];
  let erases = false;

  const size = () => (
    Math.max(2, (Number(brush.value) / STEPS) ** 1.5 * Math.min(picture.width, picture.height) / 2));
  const tell = () => {
    for (const each of dialog.querySelectorAll("[data-do=draw], [data-do=erase]")) {
      each.ariaPressed = String((each.dataset.do === "erase") === erases);
    }
    changed();
  };
  const box = () => [...dialog.querySelectorAll(".numbers input")].map(({ value }) => Number(value) || 0);
  const actions = {
    draw: () => { erases = false; },
    erase: () => { erases = true; },
    undo: () => marks.undo(),
    clear: () => marks.add({ clears: true }),
    invert: () => marks.add({ inverts: true }),
    add: () => marks.add({ box: box(), erases }),
    cancel: () => {
      marks.reset(before);
      dialog.close();
    },
    done: () => dialog.close(),
  };
  dialog.addEventListener("click", ({ target }) => {
    const name = target.closest("[data-do]")?.dataset.do;
    if (!name) return;
    actions[name]();
    tell();
  });

  // --- the pointer ---
  const scale = () => picture.width / sheet.getBoundingClientRect().width;
  const at = ({ clientX, clientY }) => {
    const { left, top } = sheet.getBoundingClientRect();
    return [clientX - left, clientY - top].map((pixels) => Math.round(pixels * scale()));
  };
  const showRing = (event) => {
    ring.hidden = event.pointerType === "touch" || event.type === "pointerleave";
    const { left, top } = sheet.getBoundingClientRect();
    const across = `${size() / scale()}px`;
    Object.assign(ring.style, { left: `${event.clientX - left}px`, top: `${event.clientY - top}px` });
    Object.assign(ring.style, { width: across, height: across });
  };
  let drawing = null; // the pointer that draws; a second finger draws nothing
  sheet.addEventListener("pointerdown", (event) => {
    if (drawing !== null || event.button) return;
    event.preventDefault();
    drawing = event.pointerId;
    sheet.setPointerCapture(drawing);
    marks.add({ line: [at(event)], size: size(), erases: erases || event.buttons === 32 });
  });
  sheet.addEventListener("pointermove", (event) => {
    showRing(event);
    if (event.pointerId !== drawing) return;
    const between = event.getCoalescedEvents?.() ?? [];
    marks.extend((between.length ? between : [event]).map(at));
  });
  for (const end of ["pointerup", "pointercancel"]) {
    sheet.addEventListener(end, ({ pointerId }) => {
      if (pointerId !== drawing) return;
      drawing = null;
      tell();
    });
  }
  sheet.addEventListener("pointerleave", showRing);

  // --- keys: the page behind the window hears none of them ---
  dialog.addEventListener("keydown", (event) => {
    event.stopPropagation();
    if (event.key !== "z" || !(event.ctrlKey || event.metaKey)) return;
    event.preventDefault();
    actions.undo();
    tell();
  });
  dialog.addEventListener("close", () => {
    dialog.remove();
    changed();
  });
  tell();
  dialog.showModal();
};

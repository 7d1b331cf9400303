// The open picture on the full screen, edge to edge. Arrow keys and swipes go to the next picture; wheel,
// pinch, double click, + and - magnify; dragging moves what is magnified. Esc returns to the page.
import { appOf, forEachApp, swallow } from "./app.js";
import { WHOLE, moved, swiped, zoomed } from "./view.js";

const STEP = 1.25; // of a key or of the wheel
const DOUBLE = 2.5; // of a double click

let app = null; // the app whose picture fills the screen
let view = WHOLE;
const pointers = new Map(); // by id: where each pressed pointer is

const image = () => app.find("#gallery .preview .media-button img");
const button = (of) => of.find("#walk [data-full]");

const show = (next) => {
  view = next;
  image()?.style.setProperty("transform", `translate(${view.x}px, ${view.y}px) scale(${view.scale})`);
  app.find("#stage").toggleAttribute("data-magnified", view.scale > 1);
};
const box = () => {
  const ratio = Number(app.find("#stage").style.getPropertyValue("--ratio")) || 1;
  const width = Math.min(innerWidth, innerHeight * ratio);
  return { width, height: width / ratio };
};
const fromMiddle = ({ x, y }) => ({ x: x - innerWidth / 2, y: y - innerHeight / 2 });
const zoom = (factor, at = { x: innerWidth / 2, y: innerHeight / 2 }) => (
  show(zoomed(view, factor, fromMiddle(at), box())));

const leave = () => {
  const left = app;
  if (!left) return;
  show(WHOLE);
  pointers.clear();
  app = null;
  left.find("#stage").removeAttribute("data-full");
  button(left).ariaPressed = "false";
  button(left).focus({ preventScroll: true });
  if (document.fullscreenElement) document.exitFullscreen();
};
export const enter = (to) => {
  app = to;
  const stage = app.find("#stage");
  stage.setAttribute("data-full", "");
  button(app).ariaPressed = "true";
  show(WHOLE);
  // Phones of Apple and many frames have no full screen for a part of a page: it fills the window there.
  if (document.fullscreenEnabled) stage.requestFullscreen({ navigationUI: "hide" }).catch(() => {});
};

document.addEventListener("fullscreenchange", () => {
  if (!document.fullscreenElement) leave();
});
document.addEventListener("click", (event) => {
  const { target } = event;
  const full = target.closest?.("#walk [data-full]");
  if (full) (app ? leave() : enter(appOf(full)));
  // Here a click may end a drag or be doubled.
  else if (app && target.closest?.("#gallery .media-button")) swallow(event);
}, true);
document.addEventListener("keydown", (event) => {
  if (!app || event.altKey || event.ctrlKey || event.metaKey) return;
  const act = {
    Escape: leave,
    ArrowLeft: () => app.find("#walk [data-walk='-1']")?.click(),
    ArrowRight: () => app.find("#walk [data-walk='1']")?.click(),
    "+": () => zoom(STEP),
    "-": () => zoom(1 / STEP),
    0: () => show(WHOLE),
  }[event.key];
  if (!act) return;
  swallow(event);
  act();
}, true);
document.addEventListener("wheel", (event) => {
  if (!app) return;
  event.preventDefault();
  zoom(event.deltaY < 0 ? STEP : 1 / STEP, event);
}, { passive: false });
document.addEventListener("dblclick", (event) => {
  if (!app || !event.target.closest("#gallery .media-button")) return;
  if (view.scale > 1) show(WHOLE);
  else zoom(DOUBLE, event);
});

const middle = ([one, other]) => ({ x: (one.x + other.x) / 2, y: (one.y + other.y) / 2 });
const distance = ([one, other]) => Math.hypot(one.x - other.x, one.y - other.y);
let began = null; // where the only pointer was pressed
document.addEventListener("pointerdown", (event) => {
  if (!app || !event.target.closest("#gallery .media-button")) return;
  pointers.set(event.pointerId, { x: event.x, y: event.y });
  began = pointers.size === 1 ? { x: event.x, y: event.y } : null;
});
document.addEventListener("pointermove", (event) => {
  const before = app && pointers.get(event.pointerId);
  if (!before) return;
  const now = { x: event.x, y: event.y };
  if (pointers.size === 1) {
    if (view.scale > 1) show(moved(view, now.x - before.x, now.y - before.y, box()));
    pointers.set(event.pointerId, now);
    return;
  }
  const apart = distance([...pointers.values()]);
  pointers.set(event.pointerId, now);
  const pair = [...pointers.values()];
  zoom(distance(pair) / apart, middle(pair));
});
for (const end of ["pointerup", "pointercancel"]) {
  document.addEventListener(end, (event) => {
    if (!app || !pointers.delete(event.pointerId) || !began || end === "pointercancel") return;
    const steps = view.scale > 1 ? 0 : swiped(event.x - began.x, event.y - began.y);
    if (steps) app.find(`#walk [data-walk="${steps}"]`)?.click();
  });
}
// A browser's own image dragging would end the pointer's.
document.addEventListener("dragstart", (event) => {
  if (app && event.target.closest?.("#stage")) event.preventDefault();
});

forEachApp((other) => other.whenOpen(() => {
  let shown = "";
  other.watch("#gallery", () => {
    if (app !== other) return;
    const source = image()?.src;
    if (!source) leave(); // it was closed
    else if (source !== shown) show(WHOLE);
    shown = source;
  }, { subtree: true, attributeFilter: ["src"] });
}));

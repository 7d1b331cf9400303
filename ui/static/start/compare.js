// The slider over an opened picture that began with another one: that one lies to the left of it.
import { make } from "../app.js";

const layout = ({ compare, before, after }, image) => make("div", { id: "before" },
  make("div", { class: "pair" },
    make("img", { src: URL.createObjectURL(image), alt: "" }),
    make("span", {}, before), make("span", {}, after), make("div", { class: "line" }),
    make("input", { type: "range", min: 0, max: 100, value: 50, "aria-label": compare })));

const INSET = 12; // pixels from an edge of the picture to the middle of the slider's thumb there

// Lets the line between the pictures be dragged like the slider, which keys and screen readers use.
const dragLine = (part, slider) => {
  const line = part.querySelector(".line");
  line.addEventListener("pointerdown", (event) => {
    event.preventDefault();
    line.setPointerCapture(event.pointerId);
  });
  line.addEventListener("pointermove", ({ clientX, pointerId }) => {
    if (!line.hasPointerCapture(pointerId)) return;
    const { left, width } = part.getBoundingClientRect();
    slider.value = (100 * (clientX - left - INSET)) / (width - 2 * INSET);
    slider.dispatchEvent(new Event("input"));
  });
};

// Shows the slider while a picture is open that began with one of the `held` ones.
export const watchOpened = (page, held, texts) => {
  let shown = null; // what is shown, and for which picture
  const update = () => {
    const { key, start } = page.querySelector("#picked [data-place]")?.dataset ?? {};
    const found = page.querySelector("#gallery .preview") && key ? held.get(start) : null;
    if (shown?.key === (found ? key : undefined)) return;
    if (shown) {
      URL.revokeObjectURL(shown.part.querySelector("img").src);
      shown.part.remove();
    }
    shown = found ? { key, part: layout(texts, found.image) } : null;
    if (!shown) return;
    const { part } = shown;
    const slider = part.querySelector("input");
    const split = () => {
      const isAtEnd = ["0", "100"].includes(slider.value);
      const inside = `calc(${INSET}px + (100% - ${2 * INSET}px) * ${slider.value / 100})`;
      part.style.setProperty("--split", isAtEnd ? `${slider.value}%` : inside);
    };
    slider.addEventListener("input", split);
    split();
    dragLine(part, slider);
    page.querySelector("#stage").append(part);
  };
  const changes = { subtree: true, childList: true, attributeFilter: ["data-key"] };
  new MutationObserver(update).observe(page.querySelector("#pictures"), changes);
  update();
};

// The slider over an opened picture that began with another one: that one lies to the left of it.
import { make } from "./marks.js";

const layout = ({ compare, before, after }, image) => make("div", { id: "before" },
  make("div", { class: "pair" },
    make("img", { src: URL.createObjectURL(image), alt: "" }),
    make("span", {}, before), make("span", {}, after),
    make("input", { type: "range", min: 0, max: 100, value: 0, "aria-label": compare })));

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
    const split = () => part.style.setProperty("--split", `${slider.value}%`);
    slider.addEventListener("input", split);
    split();
    page.querySelector("#stage").append(part);
  };
  const changes = { subtree: true, childList: true, attributeFilter: ["data-key"] };
  new MutationObserver(update).observe(page.querySelector("#pictures"), changes);
  update();
};

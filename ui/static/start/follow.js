// What pictures follow of the one to start from: the choice, its map, how closely and for how long. A
// server without ControlNets offers no choice, and nothing of this is seen.
import { make } from "../app.js";
import { fetchOnceBack } from "../../gradio_compat/network.js";
import { mapOf, numberOf, read, withNumber, withNumbersOf } from "./controls.js";

const SETTLED_MS = 300; // after the last change, the map is made
const MOST_SCALE = 200; // per cent

const slider = (name, text, limits) => make("label", {},
  make("span", {}, text, " ", make("output")),
  make("input", { type: "range", name, ...limits, step: 1, "aria-label": text }));

const layout = (texts) => make("div", { id: "start-controls", hidden: true },
  make("label", { class: "choice" }, texts.follow, make("select", { "aria-label": texts.follow })),
  make("div", { class: "followed" },
    make("button", {
      class: "map", type: "button", "aria-label": texts.map, title: texts.map, "aria-expanded": "false", hidden: true,
    }, make("img", { alt: "" })),
    make("div", { class: "numbers-of-map" },
      slider("scale", texts.scale, { min: 0, max: MOST_SCALE }),
      slider("end", texts.end, { min: 1, max: 100, title: texts.end_info }))),
  make("p", { class: "hint", role: "status" }));

const option = ({ control, label }) => make("option", { value: control }, label);
// The options of a choice; `other` is a text that is none of them.
const options = ({ texts, choices }, other) => [
  option({ control: "", label: texts.nothing }),
  ...["found", "already"].map((group) => make("optgroup", { label: texts[group] },
    ...choices.filter((choice) => choice.group === group).map(option)))
    .filter(({ children }) => children.length),
  ...(other ? [option({ control: other, label: other })] : []),
];

// Returns the part of the tools that comes after `before`. `get` and `set` the text of what is followed.
// `about` returns a function that makes the picture's `file`, the chosen `size` and `model`, what the map
// `depends` on besides, whether all of the picture `isRedrawn`, and whether it `isSketch`.
export const makeFollow = (app, before, { get, set, about }) => {
  let offer = null;
  let element = null;
  let offered = ""; // the options that are shown
  let shown = []; // what the map that is shown depends on
  let asking = new AbortController();
  let fault = "";
  const find = (selector) => element.querySelector(selector);

  const choiceOf = (text) => offer.choices.find(({ control }) => mapOf(control) === mapOf(text));
  const showChoice = (text) => {
    const choice = choiceOf(text);
    const other = text && !choice ? text : "";
    const wanted = JSON.stringify([offer, other]);
    if (wanted !== offered) find("select").replaceChildren(...options(offer, other));
    offered = wanted;
    find("select").value = choice?.control ?? other;
  };
  const showNumber = (text, name) => {
    const input = find(`[name=${name}]`);
    input.value = Math.round(100 * numberOf(text, name));
    const written = `${input.value} %`;
    input.setAttribute("aria-valuetext", written);
    input.parentElement.querySelector("output").textContent = written;
  };
  const showNote = (text) => {
    const group = choiceOf(text)?.group;
    const notes = [
      group === "already" && offer.texts.only_maps,
      group === "found" && about().isRedrawn && offer.texts.colours,
      fault,
    ];
    find(".hint").textContent = notes.filter(Boolean).join(" ");
  };
  // Leaves the map away that would look like the picture.
  const isSeen = (text) => Boolean(
    read(text) && !about().isSketch && (choiceOf(text)?.differs ?? read(text).values.preprocessor));

  const showMap = (file) => {
    const image = find(".map img");
    URL.revokeObjectURL(image.src);
    if (file) image.src = URL.createObjectURL(file);
    find(".map").hidden = !file;
  };
  const fetchMap = async (text, signal) => {
    const { file, size, model } = about();
    const body = new FormData();
    body.append("image", await file(), "picture");
    for (const [name, value] of Object.entries({ control: text, size, model })) body.append(name, value);
    const address = new URL("controls/map", app.home);
    const answer = await fetchOnceBack(app, () => fetch(address, { method: "POST", body, signal }));
    if (!answer.ok) throw new Error((await answer.json()).detail ?? "");
    return answer.blob();
  };
  const askForMap = async (text, { signal }) => {
    try {
      const file = await fetchMap(text, signal);
      if (signal.aborted) return;
      showMap(file);
    } catch ({ message }) {
      if (signal.aborted) return;
      showMap(null);
      fault = message || offer.texts.no_map;
    }
    delete find(".map").dataset.waiting;
    showNote(get());
  };
  const updateMap = (text) => {
    const depends = isSeen(text) ? [mapOf(text), ...about().depends] : [];
    if (depends.length === shown.length && depends.every((value, i) => value === shown[i])) return;
    shown = depends;
    fault = "";
    asking.abort();
    asking = new AbortController();
    if (!depends.length) return showMap(null);
    find(".map").dataset.waiting = "";
    const now = asking;
    setTimeout(() => { if (!now.signal.aborted) askForMap(text, now); }, SETTLED_MS);
  };

  const show = () => {
    if (!element) return;
    const text = get();
    element.hidden = !(text || offer.choices.length);
    find(".followed").hidden = !read(text);
    showChoice(text);
    for (const name of ["scale", "end"]) showNumber(text, name);
    updateMap(text);
    showNote(text);
  };

  const build = () => {
    element = layout(offer.texts);
    before.after(element);
    find("select").addEventListener("change", ({ target: { value } }) => (
      set(value && withNumbersOf(get(), value))));
    find(".numbers-of-map").addEventListener("input", ({ target: { name, value } }) => (
      set(withNumber(get(), name, value / 100))));
    const map = find(".map");
    map.addEventListener("click", () => { map.ariaExpanded = String(map.ariaExpanded !== "true"); });
  };
  // Asks what can be followed: ControlNets come and go, and other models may have none.
  const load = async () => {
    try {
      const address = new URL("controls", app.home);
      address.searchParams.set("model", about().model);
      const answer = await fetch(address);
      if (!answer.ok) return;
      offer = await answer.json();
    } catch {
      return; // without a network
    }
    if (!element) build();
    show();
  };
  // What the button of the picture says.
  const label = () => (offer && choiceOf(get())?.label) ?? "";
  return { load, show, label };
};

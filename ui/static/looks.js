// The looks beside the styles, and the list of all LoRAs in Advanced. Both show and change one text,
// such as "pixel:0.8", the value of the field that this script belongs to.
import { make, type } from "./app.js";

const MANY = 24; // tiles that are shown at a time; the search finds the others
const SLIDER = { min: 0, max: 1.5, step: 0.05 };
const STRENGTHS = [0, 0.35, 0.75, 1.1, Infinity]; // upper ends of the strengths that have words

export const begin = (app, { element, props, watch }) => {
  const { most, few, all, weight: limit } = props.limits;
  const texts = () => app.data.looks;

  const chosen = () => new Map((props.value ?? "").split(",").filter(Boolean).map((part) => {
    const [name, ...weights] = part.split(":");
    return [name, weights.join(":")];
  }));
  const choose = (weights) => {
    props.value = [...weights].map((pair) => pair.join(":")).join(",");
    draw();
  };
  const toggle = (name) => {
    const weights = chosen();
    if (!weights.delete(name)) weights.set(name, "1");
    choose(weights);
  };
  const setWeight = (name, value) => choose(chosen().set(name, value));

  // LoRAs that are chosen but not there can be seen, and chosen no more.
  const known = () => {
    const there = props.loras ?? [];
    const names = new Set(there.map(({ name }) => name));
    const lost = [...chosen().keys()].filter((name) => !names.has(name));
    return [...lost.map((name) => ({ name, title: name, words: [], picture: "" })), ...there];
  };

  const tile = ({ name, title, picture }) => {
    const seen = picture
      ? make("img", { src: new URL(picture, app.home).href, alt: "", loading: "lazy" })
      : make("span", { class: "plain", "aria-hidden": "true" }, [...title][0] ?? "");
    const button = make("button", { type: "button", "data-look": name, title },
      seen, make("span", { dir: "auto" }, title));
    button.addEventListener("click", () => {
      if (button.getAttribute("aria-disabled") !== "true") toggle(name);
    });
    return button;
  };

  const inWords = (weight) => {
    const place = STRENGTHS.findIndex((end) => Number.parseFloat(weight) <= end);
    return texts().strengths[place];
  };
  const slider = ({ name, title }) => {
    const input = make("input", { type: "range", ...SLIDER, "aria-label": `${texts().strength}: ${title}` });
    const said = make("output", {});
    input.addEventListener("input", () => setWeight(name, input.value));
    const row = make("div", { "data-weight": name }, make("span", { dir: "auto" }, title), input, said);
    row.show = (weight) => {
      if (document.activeElement !== input) input.value = Number.parseFloat(weight);
      said.textContent = inWords(weight);
      input.setAttribute("aria-valuetext", said.textContent);
    };
    return row;
  };
  const number = ({ name, title }) => {
    const input = make("input", {
      type: "number", min: -limit, max: limit, step: 0.05, "aria-label": `${texts().strength}: ${title}`,
    });
    input.addEventListener("change", () => {
      const value = Math.min(Math.max(Number.parseFloat(input.value) || 0, -limit), limit);
      setWeight(name, String(value));
    });
    const row = make("div", { "data-weight": name }, make("span", { dir: "auto" }, title), input);
    row.show = (weight) => {
      if (document.activeElement !== input) input.value = Number.parseFloat(weight);
    };
    return row;
  };

  const addWord = (word) => {
    const field = app.find("#prompt textarea");
    const before = field.value.trimEnd();
    type(field, before ? `${before.replace(/,$/, "")}, ${word}` : word);
  };
  const wordsOf = ({ words }) => make("p", { class: "words" }, ...words.map((word) => {
    const button = make("button", { type: "button", dir: "auto" }, word);
    button.addEventListener("click", () => addWord(word));
    return button;
  }));

  // Builds one of the two places, and returns the function that draws it anew.
  const build = (root, { title, info, limit: top, full, weights, details }) => {
    const search = make("input", { type: "search", placeholder: texts().search, "aria-label": texts().search });
    const tiles = make("div", { class: "tiles" });
    const note = make("p", { class: "note", role: "status" });
    const sliders = make("div", { class: "weights" });
    const heading = make("p", { class: "heading" }, title);
    root.append(heading, ...(info ? [make("p", { class: "note" }, info)] : []), search, tiles, note, sliders);
    if (details) root.insertBefore(make("p", { class: "note hint" }, texts().words), tiles);
    root.setAttribute("role", "group");
    root.setAttribute("aria-label", title);
    search.addEventListener("input", () => draw());
    let drawn = null;

    const matching = (loras, picked) => {
      const wanted = search.value.trim().toLowerCase();
      const fits = ({ name, title, words }) => [name, title, ...words].some((text) => (
        text.toLowerCase().includes(wanted)
      ));
      const found = loras.filter((lora) => fits(lora) || picked.has(lora.name));
      return found.slice(0, Math.max(MANY, picked.size));
    };
    const redraw = () => {
      const picked = chosen();
      const loras = known().filter(({ name, quick }) => details || !quick || picked.has(name));
      root.hidden = loras.length === 0;
      search.hidden = loras.length <= few;
      const shown = matching(loras, picked);
      const key = JSON.stringify(shown);
      if (key !== drawn) {
        drawn = key;
        const focused = document.activeElement?.dataset.look;
        tiles.replaceChildren(...shown.map((lora) => (
          details ? make("div", {}, tile(lora), wordsOf(lora)) : tile(lora)
        )));
        [...tiles.querySelectorAll("[data-look]")].find(({ dataset }) => dataset.look === focused)?.focus();
      }
      const isFull = picked.size >= top;
      for (const button of tiles.querySelectorAll("[data-look]")) {
        const isPicked = picked.has(button.dataset.look);
        button.setAttribute("aria-pressed", String(isPicked));
        button.setAttribute("aria-disabled", String(isFull && !isPicked));
      }
      note.textContent = isFull ? full : shown.length ? "" : texts().none;
      const rows = new Map([...sliders.children].map((row) => [row.dataset.weight, row]));
      for (const [name, row] of rows) if (!picked.has(name)) row.remove();
      for (const lora of loras.filter(({ name }) => picked.has(name))) {
        if (!rows.has(lora.name)) sliders.append(weights(lora));
      }
      for (const row of sliders.children) row.show(picked.get(row.dataset.weight));
    };
    return redraw;
  };

  // The list in Advanced exists only while Advanced is open.
  let places = [];
  const draw = () => {
    places = places.filter(({ root }) => root.isConnected);
    const open = [
      [element.querySelector("[data-looks]"), () => ({
        title: texts().looks, limit: most, full: texts().full, weights: slider,
      })],
      [app.find("[data-all-looks]"), () => ({
        title: texts().all, info: texts().info, limit: all, full: texts().all_full, weights: number,
        details: true,
      })],
    ];
    for (const [root, options] of open) {
      if (!root || places.some((place) => place.root === root)) continue;
      places.push({ root, redraw: build(root, options()) });
    }
    for (const { redraw } of places) redraw();
  };

  // A model has its picture in the list from which one is chosen.
  const dressModels = () => {
    for (const option of app.all("#checkpoint [role=option]:not([data-pictured])")) {
      const picture = props.models?.[option.ariaLabel];
      if (!picture) continue;
      option.dataset.pictured = "";
      option.style.setProperty("--picture", `url("${new URL(picture, app.home)}")`);
    }
  };

  watch(["value", "loras"], draw);
  app.whenOpen(() => app.watch("#advanced", () => {
    if (app.all("[data-all-looks]").some((root) => !root.hasChildNodes())) draw();
    dressModels();
  }));
  app.whenOpen(draw);
};

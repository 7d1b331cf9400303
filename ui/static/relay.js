// Hands values between this page and its server, and keeps some of them in the browser.
// Gradio runs this once, with `element`, `props`, `trigger` and `watch` of the part of the page it belongs to.
//
// The part's value is what the server is told with an event: the name of this `app`, the id of the
// `request` that it followed last, and whether files are `bare`, without settings inside. What the page
// and the server send are properties, named in `props.received`: none is lost behind another.
const page = element.closest(".gradio-container"); // may be embedded in another page
const source = element.closest("gradio-app")?.getAttribute("src") ?? location.pathname;
const query = [...new URLSearchParams(location.search)];
const link = String(new URLSearchParams(query.filter(([name]) => props.settings.includes(name))));

// The tab keeps the values of the fields, the request and the picture to start from: reloads, Back
// and Forward find them again, but no other tab does. Each link that the tab opened has values of
// its own. The browser keeps the choice about files for all tabs.
const place = [...document.querySelectorAll("gradio-app")].indexOf(element.closest("gradio-app"));
const keyOf = (name) => (
  name === props.of_browser ? `sdxl-${name}` : `sdxl-${name} ${source}?${link}${place > 0 ? ` ${place}` : ""}`
);
// A browser may have no storage for this page, or no room in it.
const attempt = (name, use) => {
  try {
    return use(name === props.of_browser ? localStorage : sessionStorage, keyOf(name));
  } catch {
    return null;
  }
};

// A link that is opened comes before what was kept; at a reload, Back or Forward it does not.
const [{ type: navigation }] = performance.getEntriesByType("navigation");
const isOpenedByLink = navigation === "navigate" && link !== "";
const kept = {};
for (const name of props.kept) {
  if (isOpenedByLink && name !== props.of_browser) attempt(name, (storage, key) => storage.removeItem(key));
  kept[name] = attempt(name, (storage, key) => JSON.parse(storage.getItem(key)));
}

const app = Math.random().toString(36).slice(2);
const tell = () => {
  props.value = { app, bare: kept.bare, request: kept.request };
};
const keep = (name, value) => {
  kept[name] = value;
  tell();
  attempt(name, (storage, key) => {
    // An older value must not come back if there is no room for this one.
    storage.removeItem(key);
    if (value) storage.setItem(key, JSON.stringify(value));
  });
};

const send = (selector, type, detail) => page.querySelector(selector)?.dispatchEvent(
  new CustomEvent(type, { bubbles: true, detail }));
const receive = {
  // The page is open as soon as all of its parts are there; a text may have been typed by then.
  opened() {
    if (kept.request) trigger("request_kept");
    if (kept.started) {
      send("#start [data-start]", "kept"); // its panel may be mounted later than this
      trigger("start_kept");
    }
    if (!kept.draft && link) trigger("linked");
  },
  entry: (news) => send("#history [data-list]", "news", news),
};
for (const name of props.received) {
  watch(name, () => (receive[name] ?? ((value) => keep(name, value)))(props[name]));
}

// What a request needs of the page besides its fields, by the names that events ask for.
const opened = () => page.querySelector("#picked [data-place]")?.dataset ?? {};
const startOf = (id) => {
  const asked = { start: id };
  send("#start [data-start]", "asked", asked);
  return asked.answer; // once it is uploaded
};
const answers = {
  key: () => ({ key: opened().key }),
  start: async () => ({ start: await startOf() }),
  // The picture that the opened one began with.
  began: async () => (
    opened().began ? { start: await startOf(opened().start) ?? { gone: true } } : {}
  ),
  // The id of the request that a press becomes.
  press: () => ({ press: [...crypto.getRandomValues(new Uint32Array(4))].join("-") }),
};
page.dataset.app = app;
page.relay = {
  kept,
  keep,
  // Returns what the server is told, with the answers to these questions.
  tell: async (names) => Object.assign(
    {}, props.value, ...await Promise.all(names.map((name) => answers[name]()))),
};
tell();
